#pragma once

#include "common.h"

/**
 * Adds the products of staged rows and staged columns to HIGH by WIDE matrices of 8x8, stored row
 * by row in `sums`. Rows and columns have DEPTH elements and a stride of PITCH elements. In every 2
 * * DEPTH / 8 elements of a column, the elements with even indices come first. A lane can therefore
 * load neighbors at once, and multiply them in successive steps.
 */
template <typename T, uint HIGH, uint WIDE, uint DEPTH, uint PITCH>
METAL_FUNC void add_staged_products(
    thread simdgroup_float8x8* sums,
    const threadgroup T* rows,
    uint row,
    const threadgroup T* columns,
    uint column,
    uint lane) {
  constexpr uint STEPS = DEPTH / 8;
  constexpr uint AHEAD = 8 / sizeof(T); // steps whose elements of a column are loaded at once
  // The row and the column of a lane's first element in a simdgroup_matrix.
  const uint matrix_y = (lane / 4 & 4) + lane / 2 % 4;
  const uint matrix_x = (lane / 4 & 2) * 2 + lane % 2 * 2;
  rows += (row + matrix_y) * PITCH + matrix_x * STEPS;
  columns += (column + matrix_x) * PITCH + matrix_y * STEPS;
  vec<T, 4> of_rows[HIGH];
  vec<T, AHEAD> of_columns[WIDE][2];
  for (uint step = 0; step < STEPS; step++) {
    simdgroup_matrix<T, 8, 8> b[WIDE];
    for (uint j = 0; j < WIDE; j++) {
      for (uint e = 0; e < 2; e++) {
        if (step % AHEAD == 0) {
          of_columns[j][e] =
              *(const threadgroup vec<T, AHEAD>*)(columns + ((8 * j + e) * PITCH + step));
        }
        b[j].thread_elements()[e] = of_columns[j][e][step % AHEAD];
      }
    }
    for (uint i = 0; i < HIGH; i++) {
      if (step % 2 == 0) {
        of_rows[i] = *(const threadgroup vec<T, 4>*)(rows + (8 * i * PITCH + 2 * step));
      }
      simdgroup_matrix<T, 8, 8> a;
      for (uint e = 0; e < 2; e++) {
        a.thread_elements()[e] = of_rows[i][step % 2 * 2 + e];
      }
      for (uint j = 0; j < WIDE; j++) {
        simdgroup_multiply_accumulate(sums[i * WIDE + j], a, b[j], sums[i * WIDE + j]);
      }
    }
  }
}
