// Stands in for Apple's IOSurface: metal-cpp only passes the handle on.
#pragma once

typedef struct __IOSurface* IOSurfaceRef;
