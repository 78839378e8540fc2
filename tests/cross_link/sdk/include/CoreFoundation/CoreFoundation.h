// Replaces Apple's CoreFoundation. It declares only the names that metal-cpp's headers mention.
#pragma once

#include <MacTypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef double CFTimeInterval;
typedef const struct __CFString* CFStringRef;

// A compiler without Objective-C literals calls this function for CFSTR("...").
CFStringRef __CFStringMakeConstantString(const char* characters);

#ifdef __cplusplus
}
#endif
