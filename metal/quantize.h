#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  CODES = 8, // elements of a group that a thread takes: their codes fill whole bytes
};

/** Threads of a group lie in one SIMD group. */
struct QuantizeParams {
  unsigned groups;
  unsigned threads; // of a group: a power of 2, at most 16
};

} // namespace mlx_primitives
