#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  QUERY_POSITIONS = 8, // room for queries in a state: the longest step whose queries it keeps
  APPEND_HEADS = 4,    // heads of one position that a thread rotates by the same angle
};

/**
 * The state is [batch, rows, features]: QUERY_POSITIONS * heads rows for queries, then kv_heads *
 * capacity for keys and as many for values. qkv is [batch, length, heads + 2 * kv_heads, features].
 */
struct RopeAppendParams {
  unsigned batch;
  unsigned heads;
  unsigned kv_heads;
  unsigned length;
  unsigned features;
  unsigned capacity;
  unsigned rows;
  unsigned pairs;
  unsigned columns;       // threads along the features: the pairs, then the copied rest two by two
  unsigned first_head;    // heads before it have no place in the state
  unsigned offset_stride; // 0: one offset, 1: one for each batch entry
  unsigned slot_stride;
  unsigned slots_follow; // the slots are the offsets
  float scale;
  float log2_base;  // unused with explicit frequencies
  float multiplier; // of the features that turn
};

/** Elements to copy where a state could not be taken over. */
struct StateCopyParams {
  unsigned count_low; // of 64 bits
  unsigned count_high;
  unsigned row; // threads of a row of the grid
};

} // namespace mlx_primitives
