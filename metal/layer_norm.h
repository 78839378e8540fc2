#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  LAYER_NORM_QUADS = 2, // least quads per thread if a threadgroup has a row: two sums cost much
  LAYER_NORM_SLOTS = 2, // floats of threadgroup scratch for each SIMD group: one for each sum
};

struct LayerNormParams {
  unsigned rows;
  unsigned axis;
  float eps;
  unsigned weighted; // 0 or 1: whether there is a weight, and a bias
  unsigned biased;
};

} // namespace mlx_primitives
