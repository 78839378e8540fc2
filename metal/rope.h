#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  ROPE_HEADS = 4, // heads of one position that a thread rotates by the same angle
};

/** x is [batch, heads, length, features]; the first 2 * pairs features are rotated. */
struct RopeParams {
  unsigned batch;
  unsigned heads;
  unsigned length;
  unsigned features;
  unsigned pairs;
  unsigned columns;       // threads along the features: the pairs, then the copied rest two by two
  unsigned offset_stride; // 0: one offset, 1: one for each batch entry
  float scale;
  float log2_base; // unused with explicit frequencies
  float direction; // 1 forward, -1 inverse
};

} // namespace mlx_primitives
