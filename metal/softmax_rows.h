// Shared by the kernels that take exponentials of a row.
#pragma once

#include "common.h"

/** fast::exp, as in MLX: its argument is never positive and its error cancels in the sum. */
METAL_FUNC float softmax_exp(float x) {
  return fast::exp(x);
}

/** The larger value. Unlike max(), whose result for NaN depends on the hardware, it drops NaN. */
METAL_FUNC float larger(float a, float b) {
  return a < b ? b : a;
}

template <typename T>
METAL_FUNC void load_row4(thread float* values, const device T* row, uint at, uint axis) {
  packed4<T> quad = load4(row, at, axis, T(-INFINITY));
  for (uint i = 0; i < READS; i++) {
    values[i] = float(quad[i]);
  }
}

template <typename T>
METAL_FUNC void store_scaled4(
    device T* row, uint at, uint axis, const thread float* values, float factor) {
#if MLXP_READS == 4
  packed4<T> quad;
  for (uint i = 0; i < READS; i++) {
    quad[i] = T(values[i] * factor);
  }
#else
  float scaled[READS];
  for (uint i = 0; i < READS; i++) {
    scaled[i] = values[i] * factor;
  }
  const packed4<T> quad = msl::rounded<T>(scaled);
#endif
  store4(row, at, axis, quad);
}

METAL_FUNC float max4(float maximum, const thread float* values) {
  for (uint i = 0; i < READS; i++) {
    maximum = larger(maximum, values[i]);
  }
  return maximum;
}

/** Turns values into exp(values - maximum) and adds them to `sum` in the order of the row. */
METAL_FUNC float exp4(float sum, thread float* values, float maximum) {
  for (uint i = 0; i < READS; i++) {
    values[i] = softmax_exp(values[i] - maximum);
    sum += values[i];
  }
  return sum;
}
