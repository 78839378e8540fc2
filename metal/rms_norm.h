#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  RMS_NORM_SLOTS = 1, // floats of threadgroup scratch for each SIMD group
};

struct RmsNormParams {
  unsigned rows;
  unsigned axis;
  float eps;
};

} // namespace mlx_primitives
