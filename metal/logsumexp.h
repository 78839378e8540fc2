#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  LOGSUMEXP_SLOTS = 2, // floats of threadgroup scratch for each SIMD group: maximum and sum
  LOGSUMEXP_GRAD_SLOTS = 3,
};

struct LogSumExpParams {
  unsigned rows;
  unsigned axis;
};

} // namespace mlx_primitives
