// Sums of two products, which all kernels round in the same way.
#pragma once

#include "common.h"

// NVIDIA's compiler would fuse the sum with one of its products, but not always with the same
// product. So the code for CUDA chooses the product itself.

/** Returns a * b + c * d. */
METAL_FUNC float sum_of_products(float a, float b, float c, float d) {
#ifdef __CUDACC__
  return fma(a, b, c * d);
#else
  return a * b + c * d;
#endif
}

/** Returns a * b - c * d. */
METAL_FUNC float difference_of_products(float a, float b, float c, float d) {
#ifdef __CUDACC__
  return fma(a, b, -(c * d));
#else
  return a * b - c * d;
#endif
}
