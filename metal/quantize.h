#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  CODES = 8, // elements of a group per thread, so that their codes fill whole bytes
};

/** A group is the elements that share a scale and a bias. Its threads are in one SIMD group. */
struct QuantizeParams {
  unsigned groups;
  unsigned threads; // of a group: a power of 2, at most 16
  unsigned rows;    // of the matrix from which rows are taken
  unsigned columns; // groups of such a row
};

} // namespace mlx_primitives
