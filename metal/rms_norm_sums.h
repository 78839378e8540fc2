#pragma once

#include "common.h"

// The arithmetic of RMS normalization, for rms_norm and for other kernels that also normalize.

/** Adds the squares of x to `sum` in the order of the row. */
template <typename T>
METAL_FUNC float add_squares(float sum, packed4<T> x) {
  for (uint i = 0; i < READS; i++) {
    float value = float(x[i]);
    sum += value * value;
  }
  return sum;
}

METAL_FUNC float inverse_root(float sum_of_squares, uint axis, float eps) {
  return precise::rsqrt(sum_of_squares / float(axis) + eps);
}
