// Stands in for Apple's IOSurface: metal-cpp passes the handle along and never looks inside.
#pragma once

typedef struct __IOSurface* IOSurfaceRef;
