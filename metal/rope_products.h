// Sums of two products that every kernel rounds alike.
#pragma once

#include "common.h"

// NVIDIA's compiler joins the sum with one of its products, in each kernel with another one.

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
