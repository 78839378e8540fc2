// Sums of two products, which all kernels round in the same way.
#pragma once

#include "common.h"

// NVIDIA's compiler would fuse the sum with one of its products, and not always with the same one.

/** a * b + c * d. */
METAL_FUNC float sum_of_products(float a, float b, float c, float d) {
#ifdef __CUDACC__
  return fma(a, b, c * d);
#else
  return a * b + c * d;
#endif
}

/** a * b - c * d. */
METAL_FUNC float difference_of_products(float a, float b, float c, float d) {
#ifdef __CUDACC__
  return fma(a, b, -(c * d));
#else
  return a * b - c * d;
#endif
}
