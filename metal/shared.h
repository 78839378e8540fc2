#pragma once

// Constants that the kernels and their launch plans share, read by C++ and by Metal.
namespace mlx_primitives {

enum : unsigned {
  SIMD_WIDTH = 32,               // threads of a SIMD group on every Apple GPU
  READS = 4,                     // consecutive elements of a row that a thread loads at a time
  SIMD_ROW = SIMD_WIDTH * READS, // the longest row that one SIMD group loads at once
  ROWS_PER_GROUP = 8,            // such short rows share a threadgroup, one SIMD group each
};

} // namespace mlx_primitives
