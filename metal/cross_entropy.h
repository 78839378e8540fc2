#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  CROSS_ENTROPY_SLOTS = 3, // floats of scratch for each SIMD group: maximum, sum, total
  CROSS_ENTROPY_QUADS = 4, // quads of a gradient's row per thread
};

struct CrossEntropyParams {
  unsigned rows;
  unsigned classes;
  unsigned ignores; // whether rows with the target `ignored` do not count
  int ignored;
  float smoothing; // the share of the target that is spread over all classes
};

} // namespace mlx_primitives
