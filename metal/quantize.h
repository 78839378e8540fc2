#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  CODES = 8, // elements of a group per thread, so that their codes fill whole bytes
};

/** The threads of a group are in one SIMD group. */
struct QuantizeParams {
  unsigned groups;
  unsigned threads; // of a group: a power of 2, at most 16
};

} // namespace mlx_primitives
