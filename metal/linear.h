#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  LINEAR_FEW_ROWS = 8,     // rows of x up to which each row of w goes to one SIMD group
  LINEAR_SIMD_ROWS = 4,    // rows of w of a SIMD group
  LINEAR_SIMDS = 8,        // SIMD groups that share the staged rows of x
  LINEAR_STAGED = 4096,    // floats of x staged at a time
  LINEAR_SQUARE = 32,      // side of a SIMD group's square of outputs
  LINEAR_DEPTH_BYTES = 64, // bytes of a row in a tile
  LINEAR_PAD_BYTES = 16,   // bytes between such rows, which reduce bank conflicts
  LINEAR_TILE_ROWS = 16,   // rows of w of a SIMD group on NVIDIA GPUs
  LINEAR_TILE_LOADS = 4,   // loads of each row by a lane, of 16 bytes, at a time
  LINEAR_TILE_COLUMNS = LINEAR_TILE_LOADS * 32,
  LINEAR_TILE_SIMDS = 8,       // SIMD groups that share rows of w
  LINEAR_GATED_THREADS = 1024, // of a core, by the registers of `linear_gated`
  LINEAR_GATED_EARLY = 2,      // loads of x by a thread before the first weights
  LINEAR_GATED_SLOTS = 64,     // partial sums of a row's squares, and room for as many SIMD groups
};

struct LinearParams {
  unsigned m;
  unsigned n;
  unsigned k;
  unsigned w_batched; // 1: each batch entry has its own w
  unsigned biased;
  unsigned residual;
  unsigned activation;
};

struct LinearGatedParams {
  unsigned n;      // rows of each matrix
  unsigned k;      // a multiple of 8
  unsigned sums;   // partial sums of a row's squares, which `rms_norm` has in its threads
  unsigned blocks; // of rows of both matrices
  float eps;
};

} // namespace mlx_primitives
