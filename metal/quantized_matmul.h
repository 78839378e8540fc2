#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  QUANTIZED_PARTS = 3,       // matrices of one dispatch at most
  QUANTIZED_BAND = 8,        // the most rows of x for which the weights are read once
  QUANTIZED_STAGED = 16384,  // bytes of x staged in threadgroup memory at a time, at most
  QUANTIZED_VALUES = 16,     // columns of x that a lane multiplies at a time
  QUANTIZED_STEP = 512,      // columns of x that a SIMD group multiplies at a time
  QUANTIZED_NORM_SUMS = 256, // partial sums of a row's squares, each in the order of the row
  QUANTIZED_NORM_AHEAD = 4,  // loads of a partial sum that are on their way together
  QUANTIZED_TILE = 32,       // columns of a tile, depth of its steps, and its rows or half of them
  QUANTIZED_TILE_PITCH = 40, // elements from one staged row of a tile to the next
  QUANTIZED_TILE_THREADS = 128,
  QUANTIZED_FEW_STAGED = 16384, // elements of x that `quantized_few` stages at most
  QUANTIZED_FEW_PAD = 16,       // elements between its staged rows of x
  QUANTIZED_FEW_ZEROS = 64,     // floats that it reads in place of other columns
  QUANTIZED_FEW_SLOTS = 64,     // partial sums of its rows' squares
  QUANTIZED_WALK_THREADS = 768, // of a core, by the registers of `quantized_walk`
};

/**
 * Returns the number of columns of x that `quantized_few` of metal/nvidia stages at a time: all
 * columns, rounded up to a multiple of 128, or as many steps of its SIMD groups as fit.
 */
constexpr unsigned quantized_few_staged(
    unsigned rows, unsigned band, unsigned axis, unsigned splits) {
  unsigned texts = rows < band ? rows : band;
  unsigned most = QUANTIZED_FEW_STAGED / texts / (128 * splits) * (128 * splits);
  unsigned whole = (axis + 127) / 128 * 128;
  return whole < most ? whole : most;
}

/** Returns how many rows of weights a SIMD group multiplies at a time with `band` rows of x. */
constexpr unsigned quantized_rows(unsigned band) {
  return band < QUANTIZED_BAND ? 4 : 2; // A thread has too few registers for more.
}

/** Returns the bytes of threadgroup memory for a tile of `rows` rows: the larger of the staged
 * elements and the product. */
constexpr unsigned quantized_tile_bytes(unsigned rows, unsigned element_bytes) {
  unsigned staged = (rows + QUANTIZED_TILE) * QUANTIZED_TILE_PITCH * element_bytes;
  unsigned product = rows * QUANTIZED_TILE * 4;
  return staged > product ? staged : product;
}

struct QuantizedMatmulParams {
  unsigned rows;    // of x
  unsigned axis;    // of x, a multiple of 32
  unsigned columns; // of the result
  unsigned parts;   // matrices, one after the other in the result unless `swiglu`
  unsigned part_columns[QUANTIZED_PARTS];
  unsigned part_blocks[QUANTIZED_PARTS]; // the first threadgroup of each
  unsigned group_shift;                  // a group is 1 << this many weights
  unsigned swiglu;                       // silu(part 0) * part 1
  unsigned normed;
  unsigned biased;
  unsigned added; // a residual follows
  float eps;
  unsigned splits; // parts of the columns that are summed separately, in `quantized_few`
  unsigned blocks; // of rows of weights, in `quantized_walk`
};

struct QuantizedTransposedParams {
  unsigned rows;    // of x
  unsigned columns; // of x, each with a row of the weights
  unsigned axis;    // of the result, a multiple of 32
  unsigned group_shift;
  unsigned added; // a residual follows
};

} // namespace mlx_primitives
