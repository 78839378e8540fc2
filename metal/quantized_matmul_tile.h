#pragma once

#include "linear_tile.h"
#include "quantized_matmul_format.h"

/**
 * Returns eight codes, the `index`th eight of a row, in two words of four codes. Each half of a
 * word begins with two of them.
 */
template <uint BITS>
METAL_FUNC void load_eight(const device uchar* row, uint index, thread uint* words) {
  if (BITS == 8) {
    const packed_uint2 both = ((const device packed_uint2*)row)[index];
    words[0] = both[0];
    words[1] = both[1];
    return;
  }
  uint low;
  uint high = 0; // from the fifth number on, if they need more than a word
  if (BITS == 2) {
    low = ((const device ushort*)row)[index];
    high = low >> 8;
  } else if (BITS == 3) {
    const device uchar* from = row + index * 3;
    low = uint(from[0]) | (uint(from[1]) << 8);
    high = (uint(from[1]) >> 4) | (uint(from[2]) << 4);
  } else if (BITS == 4) {
    low = ((const device uint*)row)[index];
    high = low >> 16;
  } else if (BITS == 5) {
    const device uchar* from = row + index * 5;
    low = uint(from[0]) | (uint(from[1]) << 8) | (uint(from[2]) << 16);
    high = (uint(from[2]) >> 4) | (uint(from[3]) << 4) | (uint(from[4]) << 12);
  } else {
    const device ushort* from = (const device ushort*)row + index * 3;
    low = uint(from[0]) | (uint(from[1]) << 16);
    high = (uint(from[1]) >> 8) | (uint(from[2]) << 8);
  }
  words[0] = as_type<uint>(ushort2(ushort(low), ushort(low >> (2 * BITS))));
  words[1] = as_type<uint>(ushort2(ushort(high), ushort(high >> (2 * BITS))));
}

/** Writes a tile of the product with a part to `tile`. Each of four SIMD groups has a quarter. */
template <typename T, uint BITS, uint FP4, uint ROWS>
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
  typedef Scales<T, BITS, FP4> S;
  threadgroup T* of_x = staged;
  threadgroup T* of_w = staged + ROWS * QUANTIZED_TILE_PITCH;
  // A thread stages eight elements of a row of weights, and of one or two rows of x. Beyond the
  // ends it stages the last row or column again, and the kernel does not write their products.
  const uint line = place.index / 4;
  const uint at = place.index % 4 * 8;
  const uint column = min(left + line, columns - 1);
  part.packed += size_t(column) * (params.axis / 8 * BITS);
  const size_t groups = size_t(column) * (params.axis >> params.group_shift);
  skip_groups<T, BITS, FP4>(part, groups);
  const device T* rows[ROWS / QUANTIZED_TILE];
  for (uint i = 0; i < ROWS / QUANTIZED_TILE; i++) {
    const uint row = min(top + line + i * QUANTIZED_TILE, params.rows - 1);
    rows[i] = x + size_t(row) * params.axis + at;
  }
  threadgroup T* to_x = of_x + (line * QUANTIZED_TILE_PITCH + at);
  threadgroup T* to_w = of_w + (line * QUANTIZED_TILE_PITCH + at);

  const uint y0 = place.simd / 2 * (ROWS / 2);
  const uint x0 = place.simd % 2 * 16;
  simdgroup_float8x8 sums[ROWS / 16 * 2];
  for (uint i = 0; i < ROWS / 16 * 2; i++) {
    sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (uint k = at; k < params.axis; k += QUANTIZED_TILE) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < ROWS / QUANTIZED_TILE; i++) {
      for (uint j = 0; j < 8; j += READS) {
        const packed4<T> quad = *(const device packed4<T>*)(rows[i] + j);
        *(threadgroup vec<T, 4>*)(to_x + i * QUANTIZED_TILE * QUANTIZED_TILE_PITCH + j) =
            vec<T, 4>(quad);
      }
      rows[i] += QUANTIZED_TILE;
    }
    uint words[2];
    load_eight<BITS>(part.packed, k / 8, words);
    const uint own = k >> params.group_shift;
    const auto stored = S::load(part, own);
    const float scale = S::number(stored);
    const float bias = S::bias(stored, stored_bias<T, FP4>(part, own));
    const float offset = fma(-added_number<T, BITS, FP4>(), scale, bias);
    for (uint i = 0; i < 2; i++) { // even weights, then odd ones
      vec<T, 4> quad;
      for (uint j = 0; j < 2; j++) {
        const float2 pair = two_numbers<T, BITS, FP4>(words[j], i);
        quad[2 * j] = T(fma(scale, pair[0], offset));
        quad[2 * j + 1] = T(fma(scale, pair[1], offset));
      }
      *(threadgroup vec<T, 4>*)(to_w + i * 4) = quad;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    add_staged_products<T, ROWS / 16, 2, QUANTIZED_TILE, QUANTIZED_TILE_PITCH>(
        sums, of_x, y0, of_w, x0, place.lane);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < ROWS / 16; i++) {
    for (uint j = 0; j < 2; j++) {
      threadgroup float* to = tile + (y0 + 8 * i) * QUANTIZED_TILE + x0 + 8 * j;
      simdgroup_store(sums[i * 2 + j], to, QUANTIZED_TILE);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

/** Multiplies many rows of x, without normalizing them. Weights are decoded into tiles in
 * threadgroup memory. */
template <typename T, uint BITS, uint FP4, uint ROWS>
[[kernel]] void quantized_tile(
    const device T* x [[buffer(0)]],
    const device uchar* packed0 [[buffer(1)]],
    const device uchar* scales0 [[buffer(2)]],
    const device uchar* biases0 [[buffer(3)]],
    const device uchar* packed1 [[buffer(4)]],
    const device uchar* scales1 [[buffer(5)]],
    const device uchar* biases1 [[buffer(6)]],
    const device uchar* packed2 [[buffer(7)]],
    const device uchar* scales2 [[buffer(8)]],
    const device uchar* biases2 [[buffer(9)]],
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
  const uint top = group.y * ROWS;
  const uint left = where.block * QUANTIZED_TILE;
  const uint columns = params.part_columns[where.part];
  // `tile` and `staged` are the same memory, since the products overwrite the elements that were
  // staged for them. For swiglu, `gates` keeps the products of the gate during the second call.
  threadgroup float* tile = scratch;
  threadgroup T* staged = (threadgroup T*)scratch;
  threadgroup float* gates = scratch + quantized_tile_bytes(ROWS, sizeof(T)) / sizeof(float);

  if (params.swiglu != 0) {
    multiply_tile<T, BITS, FP4, ROWS>(x, first, top, left, columns, staged, gates, place, params);
    multiply_tile<T, BITS, FP4, ROWS>(x, second, top, left, columns, staged, tile, place, params);
  } else {
    const Part<T> part = part_of(where.part, first, second, third);
    multiply_tile<T, BITS, FP4, ROWS>(x, part, top, left, columns, staged, tile, place, params);
  }
  for (uint i = thread_index; i < ROWS * QUANTIZED_TILE; i += place.threads) {
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
