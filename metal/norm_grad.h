#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  NORM_GRAD_SLOTS = 4,  // floats of a SIMD group's scratch, or half of them without a mean
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
  unsigned part_rows; // of a threadgroup that sums its rows
  unsigned vectors;   // whose sums are wanted: the weight, then the bias
};

struct NormGradPartParams {
  unsigned rows;
  unsigned axis;
  unsigned part_rows;
  unsigned vectors;
};

/** The sums are [parts, vectors, axis]. */
struct NormGradSumParams {
  unsigned axis;
  unsigned parts;
  unsigned vectors;
};

} // namespace mlx_primitives
