// Replaces Apple's IOSurface. metal-cpp only passes the handle on, so a declaration is enough.
#pragma once

typedef struct __IOSurface* IOSurfaceRef;
