#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  NORM_GRAD_SLOTS = 3,  // floats of a SIMD group's scratch
  NORM_GRAD_QUADS = 2,  // of a row that a thread keeps, at most
  NORM_GRAD_PARTS = 64, // of the rows, at most, whose sums are added up last
  NORM_GRAD_GROUP = 64, // threads, each with a quad of columns
};

struct NormGradParams {
  unsigned rows;
  unsigned axis;
  float eps;
  unsigned weighted;
  unsigned added;
};

struct NormGradPartParams {
  unsigned rows;
  unsigned axis;
  unsigned part_rows;
};

struct NormGradSumParams {
  unsigned axis;
  unsigned parts;
};

} // namespace mlx_primitives
