#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  ATTENTION_PART = 8,        // features of a quantized key that a thread of the matrix kernel loads
  ATTENTION_VECTOR_ROWS = 8, // rows that the vector kernel keeps in registers at most
  ATTENTION_TILE = 8,     // keys that a SIMD group of the vector kernel weighs with one rescaling
  ATTENTION_DIM = 256,    // the largest head dimension
  ATTENTION_FRAGMENT = 8, // rows and columns of a simdgroup_matrix
  ATTENTION_MATRIX_SIMDS = 4, // SIMD groups of the matrix kernel, each with eight rows
  ATTENTION_BEGINS = 6 + ATTENTION_MATRIX_SIMDS * ATTENTION_FRAGMENT, // of arrays, of a mask's rows
  ATTENTION_COMBINED_ROWS = 8, // rows that a threadgroup of the combining kernel combines
  ATTENTION_STATS = 3,         // floats of a row that the backward pass keeps
};

enum : unsigned {
  ATTENTION_NO_MASK = 0,
  ATTENTION_BOOL_MASK = 1,
  ATTENTION_ADDITIVE_MASK = 2,
};

/** The number of keys of a tile of the matrix kernel. The tile and the queries fit in 32 KB of
 * threadgroup memory. */
constexpr unsigned attention_tile_keys(unsigned row_bytes) {
  return row_bytes > 512 ? 8 : row_bytes > 384 ? 16 : 32;
}

/** The positions of the elements of a rank-4 array, relative to the start of its binding. */
struct AttentionView {
  long start;
  long strides[4];
};

/** Rows are queries of the heads that share a key-value head, by position, then by head. */
struct AttentionParams {
  AttentionView q;
  AttentionView k[3]; // elements or words, scales, biases
  AttentionView v[3];
  AttentionView mask;
  unsigned batch;
  unsigned kv_heads;
  unsigned group; // heads of a key-value head
  unsigned queries;
  unsigned keys;
  unsigned dim;       // features of a query and a key
  unsigned value_dim; // features of a value and a result
  unsigned first;     // the first key that any row sees
  unsigned end;       // the end of the keys that any row sees
  unsigned chunk;     // keys of a split
  unsigned splits;    // more than one write partial results
  unsigned before;    // splits that lie before `first`, modulo SIMD_WIDTH
  unsigned quantized_group;
  unsigned window; // positions that a query sees, back from its own; 0 if unlimited
  unsigned causal;
  unsigned mask_kind;
  unsigned has_sinks;
  float scale;
  float soft_cap; // 0 if none
};

/** The arrays with respect to which a kernel of the backward pass differentiates. */
enum : unsigned {
  ATTENTION_QUERIES = 0,
  ATTENTION_KEYS = 1,
  ATTENTION_VALUES = 2,
  ATTENTION_MASK = 3,
};

/** The number of SIMD groups of a threadgroup of the backward pass, and of fragments (eight rows)
 * of a tile. The groups' rows (queries and cotangents, or keys and values) and the tile fit in 32
 * KB of threadgroup memory. */
constexpr unsigned attention_grad_simds(unsigned row_bytes) {
  const unsigned most = ATTENTION_MATRIX_SIMDS;
  return row_bytes > 512 ? 1 : row_bytes > 256 ? 2 : most;
}

/** The backward pass, for keys and values that are not quantized. AttentionParams explains the
 * names. */
struct AttentionGradParams {
  AttentionView q;
  AttentionView k;
  AttentionView v;
  AttentionView g; // the cotangent of the result
  AttentionView mask;
  unsigned batch;
  unsigned heads;
  unsigned kv_heads;
  unsigned group;
  unsigned queries;
  unsigned keys;
  unsigned dim;
  unsigned value_dim;
  unsigned window;
  unsigned causal;
  unsigned mask_kind;
  unsigned has_sinks;
  float scale;
  float soft_cap;
};

} // namespace mlx_primitives
