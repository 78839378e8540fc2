#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  REDUCE_SLOTS = 1,               // floats of threadgroup scratch for each SIMD group
  REDUCE_SIMD_ROW = 4 * SIMD_ROW, // the longest row that one SIMD group takes
  REDUCE_PIECE = 8192,            // elements of a piece of a row that is split, at least
  REDUCE_PIECES = 1024,           // pieces of a row, at most
  REDUCE_MANY_ROWS = 256,         // rows that fill a GPU without being split
};

/** Each row is cut into `pieces` of `piece` elements. The last piece may be shorter. */
struct ReduceParams {
  unsigned long axis;
  unsigned rows;
  unsigned pieces;
  unsigned piece;
  float scale;   // multiplies the result
  unsigned root; // 1: the square root is stored
};

} // namespace mlx_primitives
