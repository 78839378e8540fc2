#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  MASKED_SOFTMAX_SLOTS = 2, // floats of threadgroup scratch for each SIMD group: maximum and sum
  MASK_DIMS = 8,            // extents that the rows of a mask are numbered by, at most
};

enum MaskKind : unsigned {
  MASK_NONE,
  MASK_BOOL,     // a byte for each score, 0 where it is hidden
  MASK_ADDITIVE, // a number of the scores' type, added
};

/** Strides and offsets are in elements; a stride of 0 repeats an element. */
struct MaskedSoftmaxParams {
  unsigned rows;
  unsigned queries;
  unsigned keys;
  unsigned causal; // queries are aligned to the last keys and see none after theirs
  unsigned window; // with causal: how many keys up to its own a query sees; 0 for all
  unsigned mask_kind;
  unsigned mask_dims;
  float scale;
  long mask_start;
  long mask_key_stride;
  long mask_strides[MASK_DIMS];
  unsigned mask_shape[MASK_DIMS];
};

} // namespace mlx_primitives
