// Stands in for Apple's CoreFoundation: only the names that metal-cpp's headers mention.
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

// The function that CFSTR("...") calls in a compiler without Objective-C literals.
CFStringRef __CFStringMakeConstantString(const char* characters);

#ifdef __cplusplus
}
#endif
