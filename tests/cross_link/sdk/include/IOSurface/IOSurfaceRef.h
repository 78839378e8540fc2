// Stands in for Apple's IOSurface: metal-cpp only passes the handle along.
#pragma once

typedef struct __IOSurface* IOSurfaceRef;
