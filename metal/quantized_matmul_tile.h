#pragma once

#include "quantized_matmul_format.h"

/** Eight weights from a byte boundary on, as two words of four. */
template <uint BITS>
METAL_FUNC void load_eight(const device uchar* from, thread uint* words) {
  if (BITS == 2) {
    const uint both = *(const device ushort*)from;
    words[0] = both;
    words[1] = both >> 8;
  } else if (BITS == 3) {
    words[0] = uint(from[0]) | (uint(from[1]) << 8);
    words[1] = (uint(from[1]) >> 4) | (uint(from[2]) << 4);
  } else if (BITS == 4) {
    const uint both = *(const device uint*)from;
    words[0] = both;
    words[1] = both >> 16;
  } else if (BITS == 6) {
    const device ushort* halves = (const device ushort*)from;
    const uint middle = halves[1];
    words[0] = uint(halves[0]) | (middle << 16);
    words[1] = (middle >> 8) | (uint(halves[2]) << 8);
  } else {
    const packed_uint2 both = *(const device packed_uint2*)from;
    words[0] = both[0];
    words[1] = both[1];
  }
}

/** A tile of the product with one part: 16 x 16 for each of four SIMD groups, left in `tile`. */
template <typename T, uint BITS, bool FP4>
METAL_FUNC void multiply_tile(
    const device T* x,
    Part<T> part,
    uint top,
    uint left,
    uint columns,
    threadgroup T* staged,
    threadgroup float* tile,
    Place place,
    constant QuantizedMatmulParams& params) {
  threadgroup T* of_x = staged;
  threadgroup T* of_w = staged + QUANTIZED_TILE * QUANTIZED_TILE_PITCH;
  const uint groups = params.axis >> params.group_shift;
  // A thread stages eight elements of a row of each.
  const uint line = place.index / 4;
  const uint at = place.index % 4 * 8;
  const bool row_live = top + line < params.rows;
  const bool column_live = left + line < columns;
  const size_t column = min(left + line, columns - 1);
  x += size_t(min(top + line, params.rows - 1)) * params.axis;
  const device uchar* packed = part.packed + column * (params.axis / 8 * BITS);

  const uint y0 = place.simd / 2 * 16;
  const uint x0 = place.simd % 2 * 16;
  simdgroup_float8x8 sums[2][2];
  for (uint i = 0; i < 2; i++) {
    for (uint j = 0; j < 2; j++) {
      sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }
  for (uint k0 = 0; k0 < params.axis; k0 += QUANTIZED_TILE) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 8; i += READS) {
      packed4<T> quad;
      for (uint j = 0; j < READS; j++) {
        quad[j] = T(0.0f);
      }
      if (row_live) {
        quad = *(const device packed4<T>*)(x + k0 + at + i);
      }
      for (uint j = 0; j < READS; j++) {
        of_x[line * QUANTIZED_TILE_PITCH + at + i + j] = quad[j];
      }
    }
    const uint k = k0 + at;
    uint words[2] = {0, 0};
    float scale = 0.0f;
    float offset = 0.0f;
    if (column_live) {
      load_eight<BITS>(packed + k / 8 * BITS, words);
      const size_t index = column * groups + (k >> params.group_shift);
      scale = scale_at<T, FP4>(part, index);
      offset = bias_at<T, FP4>(part, index);
    }
    for (uint i = 0; i < 8; i++) {
      const float q = number<BITS, FP4>(words[i / 4], i % 4 * BITS);
      of_w[line * QUANTIZED_TILE_PITCH + at + i] = T(fma(scale, q, offset));
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint step = 0; step < QUANTIZED_TILE; step += 8) {
      simdgroup_matrix<T, 8, 8> a[2];
      simdgroup_matrix<T, 8, 8> b[2];
      for (uint i = 0; i < 2; i++) {
        const threadgroup T* from = of_x + (y0 + 8 * i) * QUANTIZED_TILE_PITCH + step;
        simdgroup_load(a[i], from, QUANTIZED_TILE_PITCH);
        from = of_w + (x0 + 8 * i) * QUANTIZED_TILE_PITCH + step;
        simdgroup_load(b[i], from, QUANTIZED_TILE_PITCH, ulong2(0), true);
      }
      for (uint i = 0; i < 2; i++) {
        for (uint j = 0; j < 2; j++) {
          simdgroup_multiply_accumulate(sums[i][j], a[i], b[j], sums[i][j]);
        }
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < 2; i++) {
    for (uint j = 0; j < 2; j++) {
      threadgroup float* to = tile + (y0 + 8 * i) * QUANTIZED_TILE + x0 + 8 * j;
      simdgroup_store(sums[i][j], to, QUANTIZED_TILE);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

/** Many rows of x: tiles whose weights are decoded into threadgroup memory. x is normalised. */
template <typename T, uint BITS, bool FP4>
[[kernel]] void quantized_tile(
    const device T* x [[buffer(0)]],
    const device uchar* packed0 [[buffer(1)]],
    const device uchar* scales0 [[buffer(2)]],
    const device T* biases0 [[buffer(3)]],
    const device uchar* packed1 [[buffer(4)]],
    const device uchar* scales1 [[buffer(5)]],
    const device T* biases1 [[buffer(6)]],
    const device uchar* packed2 [[buffer(7)]],
    const device uchar* scales2 [[buffer(8)]],
    const device T* biases2 [[buffer(9)]],
    const device T* bias [[buffer(10)]],
    const device T* residual [[buffer(11)]],
    device T* out [[buffer(12)]],
    constant QuantizedMatmulParams& params [[buffer(13)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint2 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const Place place = {thread_index, group_size.x, lane, simd, simds};
  const Part<T> first = {packed0, scales0, biases0};
  const Part<T> second = {packed1, scales1, biases1};
  const Part<T> third = {packed2, scales2, biases2};
  const Where where = find_part(group.x, params);
  const uint top = group.y * QUANTIZED_TILE;
  const uint left = where.block * QUANTIZED_TILE;
  const uint columns = params.part_columns[where.part];
  threadgroup float* tile = scratch;
  threadgroup T* staged = (threadgroup T*)(tile + QUANTIZED_TILE * QUANTIZED_TILE);
  // Only there for swiglu.
  threadgroup float* gates =
      (threadgroup float*)(staged + 2 * QUANTIZED_TILE * QUANTIZED_TILE_PITCH);

  if (params.swiglu != 0) {
    multiply_tile<T, BITS, FP4>(x, first, top, left, columns, staged, gates, place, params);
    multiply_tile<T, BITS, FP4>(x, second, top, left, columns, staged, tile, place, params);
  } else {
    const Part<T> part = part_of(where.part, first, second, third);
    multiply_tile<T, BITS, FP4>(x, part, top, left, columns, staged, tile, place, params);
  }
  for (uint i = thread_index; i < QUANTIZED_TILE * QUANTIZED_TILE; i += place.threads) {
    const uint row = top + i / QUANTIZED_TILE;
    const uint column = left + i % QUANTIZED_TILE;
    if (row < params.rows && column < columns) {
      float y = float(T(tile[i]));
      if (params.swiglu != 0) {
        y = swiglu<T>(float(T(gates[i])), y);
      }
      write_result(y, row, where.columns_before + column, bias, residual, out, params);
    }
  }
}
