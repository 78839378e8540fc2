#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  TAKE_GRAD_ROWS = 16,   // of the matrix that a threadgroup writes, at most
  TAKE_GRAD_GROUP = 256, // threads, at most, each with a quad of columns
};

struct TakeGradOrderParams {
  unsigned count; // of the rows that were taken
};

struct TakeGradParams {
  unsigned count;
  unsigned half; // the largest power of two that is not above it
  unsigned rows; // of the matrix
  unsigned axis;
};

} // namespace mlx_primitives
