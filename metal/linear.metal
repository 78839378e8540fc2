#include "linear.h"
#include "linear_finish.h"
#include "linear_tile.h"

// Sums are in float.

/** Loads elements at, ..., at + READS - 1 of a SIMD group's rows of w; zeros past `length`. */
template <typename T>
METAL_FUNC void load_weights(
    thread packed4<T>* weights,
    const device T* w,
    uint first,
    uint at,
    uint length,
    constant LinearParams& params) {
  for (uint r = 0; r < LINEAR_SIMD_ROWS; r++) {
    const uint row = min(first + r, params.n - 1);
    weights[r] = load4(w + size_t(row) * params.k, at, length, T(0.0f));
  }
}

/** Adds the products of these weights with the values of each row of x. */
template <typename T, uint ROWS>
METAL_FUNC void add_products(
    thread float* sums, const thread packed4<T>* weights, const threadgroup float* staged) {
  for (uint m = 0; m < ROWS; m++) {
    const float4 values = *(const threadgroup float4*)(staged + m * (LINEAR_STAGED / ROWS));
    for (uint i = 0; i < READS; i++) {
      for (uint r = 0; r < LINEAR_SIMD_ROWS; r++) {
        sums[m * LINEAR_SIMD_ROWS + r] += float(weights[r][i]) * values[i];
      }
    }
  }
}

/** Computes the results for up to ROWS rows of x, which the threadgroup stages as floats. Reads w
 * once. */
template <typename T, uint ROWS>
[[kernel]] void linear_few(
    const device T* x [[buffer(0)]],
    const device T* w [[buffer(1)]],
    const device T* bias [[buffer(2)]],
    const device T* residual [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant LinearParams& params [[buffer(5)]],
    threadgroup float* staged [[threadgroup(0)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint3 threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  constexpr uint CHUNK = LINEAR_STAGED / ROWS;
  constexpr bool EARLY = ROWS == 1 && sizeof(T) == 2; // others need the registers
  const size_t batch = group.z;
  x += batch * params.m * params.k;
  w += batch * params.w_batched * params.n * params.k;
  const uint top = group.y * ROWS;
  const uint first = (group.x * simds + simd) * LINEAR_SIMD_ROWS;

  float sums[ROWS * LINEAR_SIMD_ROWS];
  for (uint i = 0; i < ROWS * LINEAR_SIMD_ROWS; i++) {
    sums[i] = 0.0f;
  }
  for (uint start = 0; start < params.k; start += CHUNK) {
    const uint length = min(CHUNK, params.k - start);
    packed4<T> weights[LINEAR_SIMD_ROWS];
    if (EARLY) { // loaded before the threads wait for each other
      load_weights(weights, w + start, first, lane * READS, length, params);
    }
    if (start > 0) { // wait until every SIMD group is done with the previous chunk
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint m = 0; m < ROWS; m++) {
      const device T* row = x + size_t(min(top + m, params.m - 1)) * params.k + start;
      for (uint at = index * READS; at < length; at += threads.x * READS) {
        const packed4<T> values = load4(row, at, length, T(0.0f));
        for (uint i = 0; i < READS; i++) {
          staged[m * CHUNK + at + i] = float(values[i]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    uint at = lane * READS;
    if (EARLY && at < length) {
      add_products<T, ROWS>(sums, weights, staged + at);
      at += SIMD_ROW;
    }
    for (; at < length; at += SIMD_ROW) {
      load_weights(weights, w + start, first, at, length, params);
      add_products<T, ROWS>(sums, weights, staged + at);
    }
  }

  // Select the sum of this lane's output: each output of the SIMD group gets one lane.
  float mine = 0.0f;
  for (uint i = 0; i < ROWS * LINEAR_SIMD_ROWS; i++) {
    const float sum = simd_sum(sums[i]);
    mine = lane == i ? sum : mine;
  }
  const uint m = top + lane / LINEAR_SIMD_ROWS;
  const uint column = first + lane % LINEAR_SIMD_ROWS;
  if (m < params.m && m < top + ROWS && column < params.n) {
    const size_t at = (batch * params.m + m) * params.n + column;
    out[at] = finished(mine, bias, residual, params, column, at);
  }
}

/**
 * Copies ROWS by COLUMNS elements of a matrix, beginning at (row, column), with zeros past its end.
 * With PARTED it stores the elements in the order in which `add_staged_products` reads them.
 */
template <typename T, uint ROWS, uint COLUMNS, uint STRIDE, uint THREADS, bool PARTED>
METAL_FUNC void load_tile(
    threadgroup T* tile,
    const device T* matrix,
    uint row,
    uint rows,
    uint column,
    uint columns,
    uint index) {
  constexpr uint ACROSS = COLUMNS / READS;
  constexpr uint STEP = THREADS / ACROSS; // rows at a time
  row += index / ACROSS;
  column += index % ACROSS * READS;
  const uint part = COLUMNS / 8; // of even, and of odd elements
  const uint at = index % ACROSS * READS;
  tile += index / ACROSS * STRIDE + (PARTED ? at - at % (2 * part) / 2 : at);
  matrix += size_t(row) * columns;
#pragma clang loop unroll(disable)
  for (uint i = 0; i < ROWS; i += STEP) {
    packed4<T> values;
    if (row + i < rows) {
      values = load4(matrix, column, columns, T(0.0f));
    } else {
      for (uint j = 0; j < READS; j++) {
        values[j] = T(0.0f);
      }
    }
    if (PARTED) {
      *(threadgroup vec<T, 2>*)tile = vec<T, 2>(values[0], values[2]);
      *(threadgroup vec<T, 2>*)(tile + part) = vec<T, 2>(values[1], values[3]);
    } else {
      *(threadgroup vec<T, 4>*)tile = vec<T, 4>(values);
    }
    tile += STEP * STRIDE;
    matrix += size_t(STEP) * columns;
  }
}

/**
 * Uses HIGH by WIDE SIMD groups. Each SIMD group has a square of outputs in registers. Tiles of x
 * and w are staged in threadgroup memory. w is [n, k], or [k, n] with COLUMNS.
 */
template <typename T, uint HIGH, uint WIDE, bool COLUMNS>
[[kernel]] void linear_tiled(
    const device T* x [[buffer(0)]],
    const device T* w [[buffer(1)]],
    const device T* bias [[buffer(2)]],
    const device T* residual [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant LinearParams& params [[buffer(5)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  constexpr uint SIDE = 8;
  constexpr uint SQUARES = LINEAR_SQUARE / SIDE;
  constexpr uint DEPTH = LINEAR_DEPTH_BYTES / sizeof(T);
  constexpr uint PAD = LINEAR_PAD_BYTES / sizeof(T);
  constexpr uint TALL = HIGH * LINEAR_SQUARE;
  constexpr uint BROAD = WIDE * LINEAR_SQUARE;
  constexpr uint THREADS = HIGH * WIDE * SIMD_WIDTH;
  constexpr uint X_STRIDE = DEPTH + PAD;
  constexpr uint W_ROWS = COLUMNS ? DEPTH : BROAD;
  constexpr uint W_COLUMNS = COLUMNS ? BROAD : DEPTH;
  constexpr uint W_STRIDE = W_COLUMNS + PAD;
  const size_t batch = group.z;
  x += batch * params.m * params.k;
  w += batch * params.w_batched * params.n * params.k;
  const uint top = group.y * TALL;
  const uint left = group.x * BROAD;
  const uint down = simd / WIDE * LINEAR_SQUARE;
  const uint along = simd % WIDE * LINEAR_SQUARE;
  threadgroup T* x_tile = (threadgroup T*)scratch;
  threadgroup T* w_tile = x_tile + TALL * X_STRIDE;

  simdgroup_float8x8 sums[SQUARES * SQUARES];
  for (uint i = 0; i < SQUARES * SQUARES; i++) {
    sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (uint start = 0; start < params.k; start += DEPTH) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_tile<T, TALL, DEPTH, X_STRIDE, THREADS, false>(
        x_tile, x, top, params.m, start, params.k, index);
    load_tile<T, W_ROWS, W_COLUMNS, W_STRIDE, THREADS, !COLUMNS>(
        w_tile,
        w,
        COLUMNS ? start : left,
        COLUMNS ? params.k : params.n,
        COLUMNS ? left : start,
        COLUMNS ? params.n : params.k,
        index);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    if (!COLUMNS) {
      add_staged_products<T, SQUARES, SQUARES, DEPTH, X_STRIDE>(
          sums, x_tile, down, w_tile, along, lane);
      continue;
    }
    for (uint at = 0; at < DEPTH; at += SIDE) {
      simdgroup_matrix<T, 8, 8> rows[SQUARES];
      simdgroup_matrix<T, 8, 8> columns[SQUARES];
      for (uint i = 0; i < SQUARES; i++) {
        simdgroup_load(rows[i], x_tile + (down + i * SIDE) * X_STRIDE + at, X_STRIDE);
        simdgroup_load(columns[i], w_tile + at * W_STRIDE + along + i * SIDE, W_STRIDE);
      }
      for (uint i = 0; i < SQUARES; i++) {
        for (uint j = 0; j < SQUARES; j++) {
          thread simdgroup_float8x8& sum = sums[i * SQUARES + j];
          simdgroup_multiply_accumulate(sum, rows[i], columns[j], sum);
        }
      }
    }
  }

  // Each SIMD group writes its result through threadgroup memory, eight rows at a time. After the
  // barrier, no thread needs the tiles in that memory.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup float* strip = scratch + simd * SIDE * LINEAR_SQUARE;
  for (uint i = 0; i < SQUARES; i++) {
    for (uint j = 0; j < SQUARES; j++) {
      simdgroup_store(sums[i * SQUARES + j], strip + j * SIDE, LINEAR_SQUARE);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint r = 0; r < SIDE; r++) {
      const uint row = top + down + i * SIDE + r;
      const uint column = left + along + lane;
      if (row < params.m && column < params.n) {
        const size_t at = (batch * params.m + row) * params.n + column;
        const float sum = strip[r * LINEAR_SQUARE + lane];
        out[at] = finished(sum, bias, residual, params, column, at);
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

#define LINEAR_KERNELS(DTYPE, T)                                             \
  MLXP_KERNEL("mlxp_linear_few1_" DTYPE, linear_few<T, 1>)                   \
  MLXP_KERNEL("mlxp_linear_few2_" DTYPE, linear_few<T, 2>)                   \
  MLXP_KERNEL("mlxp_linear_few4_" DTYPE, linear_few<T, 4>)                   \
  MLXP_KERNEL("mlxp_linear_few8_" DTYPE, linear_few<T, 8>)                   \
  MLXP_KERNEL("mlxp_linear_tiled_1x1_" DTYPE, linear_tiled<T, 1, 1, false>)  \
  MLXP_KERNEL("mlxp_linear_tiled_1x2_" DTYPE, linear_tiled<T, 1, 2, false>)  \
  MLXP_KERNEL("mlxp_linear_tiled_2x2_" DTYPE, linear_tiled<T, 2, 2, false>)  \
  MLXP_KERNEL("mlxp_linear_columns_1x1_" DTYPE, linear_tiled<T, 1, 1, true>) \
  MLXP_KERNEL("mlxp_linear_columns_1x2_" DTYPE, linear_tiled<T, 1, 2, true>) \
  MLXP_KERNEL("mlxp_linear_columns_2x2_" DTYPE, linear_tiled<T, 2, 2, true>)

MLXP_EACH_DTYPE(LINEAR_KERNELS)
