#pragma once

// Constants that the kernels and their launch plans share, read by C++ and by Metal.

// The number of elements that a thread loads at a time. CUDA also compiles some kernels with 8, for
// launches in which all rows have a multiple of 8 elements, of 16 bits each.
#ifndef MLXP_READS
#define MLXP_READS 4
#endif

namespace mlx_primitives {

enum : unsigned {
  SIMD_WIDTH = 32,               // threads of a SIMD group on every Apple GPU
  READS = MLXP_READS,            // consecutive elements of a row that a thread loads at a time
  SIMD_ROW = SIMD_WIDTH * READS, // the longest row that one SIMD group loads at once
  WHOLE_QUADS = READS != 4,      // 1 if rows end where a thread's elements end
  ROWS_PER_GROUP = 8,            // such short rows share a threadgroup, one SIMD group each
};

} // namespace mlx_primitives
