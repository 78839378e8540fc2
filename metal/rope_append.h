#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  QUERY_POSITIONS = 8, // positions of queries in a state: the longest step whose queries it stores
  APPEND_HEADS = 4,    // heads of one position that a thread rotates by the same angle
};

/**
 * The state is [batch, rows, features]: QUERY_POSITIONS * heads rows for queries, then kv_heads *
 * capacity rows each for keys and values. qkv is [batch, length, heads + 2 * kv_heads, features].
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
  unsigned first_head;    // heads before it are not stored in the state
  unsigned offset_stride; // 0: one offset, 1: one for each batch entry
  unsigned slot_stride;
  unsigned slots_follow; // the slots are the offsets
  float scale;
  float log2_base;  // unused with explicit frequencies
  float multiplier; // multiplies the rotated features
};

/** The offset of all sequences, if the CPU knew it when it encoded the kernel. */
struct KnownOffset {
  unsigned known;
  int offset;
};

/** The number of elements to copy if a state's buffer cannot be reused. */
struct StateCopyParams {
  unsigned count_low; // of 64 bits
  unsigned count_high;
  unsigned row; // threads of a row of the grid
};

} // namespace mlx_primitives
