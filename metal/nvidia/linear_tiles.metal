#include "linear.h"
#include "linear_finish.h"
#include "nvidia/linear_tiles.h"

/**
 * Multiplies up to LINEAR_FEW_ROWS rows of x. Each SIMD group multiplies LINEAR_TILE_ROWS rows of
 * weights, as small matrices, with a part of the columns. The other SIMD groups of its threadgroup
 * multiply the other parts. A row of x is a column of the right matrix, so the order of its sums
 * does not depend on the other rows.
 */
template <typename T>
[[kernel]] void linear_tiles(
    const device T* x [[buffer(0)]],
    const device T* w [[buffer(1)]],
    const device T* bias [[buffer(2)]],
    const device T* residual [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant LinearParams& params [[buffer(5)]],
    threadgroup float* partial [[threadgroup(0)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint3 threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  constexpr uint SUMS = LINEAR_TILE_ROWS * LINEAR_FEW_ROWS;
  const uint g = lane / 4;
  const uint t = lane % 4;
  const size_t batch = group.z;
  const uint axis = params.k;
  const uint top = group.y * LINEAR_FEW_ROWS;
  const uint rows = min(params.m - top, uint(LINEAR_FEW_ROWS));
  const uint first = group.x * LINEAR_TILE_ROWS;
  w += batch * params.w_batched * params.n * axis;
  const device T* both[2] = {
      w + size_t(min(first + g, params.n - 1)) * axis,
      w + size_t(min(first + g + 8, params.n - 1)) * axis};
  const device T* own = x + (batch * params.m + top + min(g, rows - 1)) * axis;

  const uint step = simds * LINEAR_TILE_COLUMNS;
  TileWeights weights;
  load_tile_weights(weights, both, simd * LINEAR_TILE_COLUMNS + t * 8, axis);
  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (uint k = simd * LINEAR_TILE_COLUMNS + t * 8; k - t * 8 < axis; k += step) {
    uint4 values[LINEAR_TILE_LOADS];
    for (uint i = 0; i < LINEAR_TILE_LOADS; i++) {
      const uint at = k + 32 * i;
      values[i] = uint4(0);
      if (at < axis) {
        values[i] = load_words((const device uint*)(own + at));
      }
    }
    for (uint i = 0; i < LINEAR_TILE_LOADS; i++) {
      for (uint j = 0; j < 4; j += 2) {
        const uint left[4] = {
            weights.words[0][i][j],
            weights.words[1][i][j],
            weights.words[0][i][j + 1],
            weights.words[1][i][j + 1]};
        const uint right[2] = {values[i][j], values[i][j + 1]};
        multiply_add<T>(sums, left, right, lane);
      }
    }
    load_tile_weights(weights, both, k + step, axis);
  }

  for (uint i = 0; i < 4; i++) {
    partial[simd * SUMS + (g + i / 2 * 8) * LINEAR_FEW_ROWS + 2 * t + i % 2] = sums[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = index; i < LINEAR_TILE_ROWS * rows; i += threads.x) {
    const uint column = first + i % LINEAR_TILE_ROWS;
    const uint m = i / LINEAR_TILE_ROWS;
    float sum = 0.0f;
    for (uint s = 0; s < simds; s++) {
      sum += partial[s * SUMS + i % LINEAR_TILE_ROWS * LINEAR_FEW_ROWS + m];
    }
    if (column < params.n) {
      const size_t at = (batch * params.m + top + m) * params.n + column;
      out[at] = finished(sum, bias, residual, params, column, at);
    }
  }
}

MLXP_KERNEL("mlxp_linear_tiles_float16", linear_tiles<half>)
MLXP_KERNEL("mlxp_linear_tiles_bfloat16", linear_tiles<bfloat>)
