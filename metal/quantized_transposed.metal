#include "quantized_matmul_tile.h"

/**
 * Computes out = x W + residual for a packed W of shape [columns, axis]. Tiles of weights are
 * decoded into threadgroup memory with rows and columns exchanged.
 */
template <typename T, uint BITS, uint FLOATS>
[[kernel]] void quantized_transposed(
    const device T* x [[buffer(0)]],
    const device uchar* packed [[buffer(1)]],
    const device uchar* scales [[buffer(2)]],
    const device uchar* biases [[buffer(3)]],
    const device T* residual [[buffer(4)]],
    device T* out [[buffer(5)]],
    constant QuantizedTransposedParams& params [[buffer(6)]],
    threadgroup float* tile [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  typedef Scales<T, BITS, FLOATS> S;
  threadgroup T* of_x = (threadgroup T*)tile;
  threadgroup T* of_w = of_x + QUANTIZED_TILE * QUANTIZED_TILE_PITCH;
  const uint top = group.y * QUANTIZED_TILE;
  const uint left = group.x * QUANTIZED_TILE;
  const Part<T> part = {packed, scales, biases};
  // A thread stages eight elements of a row of x, and eight weights of one row. Past the end it
  // stages the last row of x, whose products are not written. Columns past the end are zeros.
  const uint line = thread_index / 4;
  const uint at = thread_index % 4 * 8;
  const device T* row = x + size_t(min(top + line, params.rows - 1)) * params.columns;
  threadgroup T* to_x = of_x + (line * QUANTIZED_TILE_PITCH + at);
  // Among every eight weights of a column, the weights with even indices come first.
  const uint turned = line / 8 * 8 + line % 2 * 4 + line % 8 / 2;
  threadgroup T* to_w = of_w + (at * QUANTIZED_TILE_PITCH + turned);
  const uint bytes = params.axis / 8 * BITS;
  const uint groups = params.axis >> params.group_shift;
  const uint own = (left + at) >> params.group_shift;

  const uint y0 = simd / 2 * 16;
  const uint x0 = simd % 2 * 16;
  simdgroup_float8x8 sums[4];
  for (uint i = 0; i < 4; i++) {
    sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (uint k = 0; k < params.columns; k += QUANTIZED_TILE) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint j = 0; j < 8; j += READS) {
      const packed4<T> quad = load4(row, k + at + j, params.columns, T(0.0f));
      *(threadgroup vec<T, 4>*)(to_x + j) = vec<T, 4>(quad);
    }
    const uint column = k + line;
    const bool there = column < params.columns;
    const uint from = min(column, params.columns - 1);
    uint words[2];
    load_eight<BITS>(packed + size_t(from) * bytes, (left + at) / 8, words);
    const size_t index = size_t(from) * groups + own;
    const auto stored = S::load(part, index);
    const float scale = S::number(stored);
    const float bias = S::bias(stored, stored_bias<T, FLOATS>(part, index));
    const float offset = fma(-added_number<T, BITS, FLOATS>(), scale, bias);
    for (uint j = 0; j < 2; j++) {
      for (uint i = 0; i < 2; i++) {
        const float2 pair = two_numbers<T, BITS, FLOATS>(words[j], i);
        for (uint h = 0; h < 2; h++) {
          const T number = T(fma(scale, pair[h], offset));
          to_w[(4 * j + 2 * h + i) * QUANTIZED_TILE_PITCH] = there ? number : T(0.0f);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    add_staged_products<T, 2, 2, QUANTIZED_TILE, QUANTIZED_TILE_PITCH>(
        sums, of_x, y0, of_w, x0, lane);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < 2; i++) {
    for (uint j = 0; j < 2; j++) {
      threadgroup float* to = tile + (y0 + 8 * i) * QUANTIZED_TILE + x0 + 8 * j;
      simdgroup_store(sums[i * 2 + j], to, QUANTIZED_TILE);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index; i < QUANTIZED_TILE * QUANTIZED_TILE; i += QUANTIZED_TILE_THREADS) {
    const uint place = top + i / QUANTIZED_TILE;
    const size_t to = size_t(place) * params.axis + (left + i % QUANTIZED_TILE);
    if (place < params.rows) {
      float y = float(T(tile[i]));
      if (params.added != 0) {
        y += float(residual[to]);
      }
      out[to] = T(y);
    }
  }
}

#define QUANTIZED_TRANSPOSED(FORMAT, DTYPE, ...) \
  MLXP_KERNEL("mlxp_quantized_transposed_" FORMAT "_" DTYPE, quantized_transposed<__VA_ARGS__>)

#define QUANTIZED_TRANSPOSED_FORMATS(DTYPE, T)          \
  QUANTIZED_TRANSPOSED("b2", DTYPE, T, 2, INTEGERS)     \
  QUANTIZED_TRANSPOSED("b3", DTYPE, T, 3, INTEGERS)     \
  QUANTIZED_TRANSPOSED("b4", DTYPE, T, 4, INTEGERS)     \
  QUANTIZED_TRANSPOSED("b5", DTYPE, T, 5, INTEGERS)     \
  QUANTIZED_TRANSPOSED("b6", DTYPE, T, 6, INTEGERS)     \
  QUANTIZED_TRANSPOSED("b8", DTYPE, T, 8, INTEGERS)     \
  QUANTIZED_TRANSPOSED("mxfp4", DTYPE, T, 4, MX_FLOATS) \
  QUANTIZED_TRANSPOSED("mxfp8", DTYPE, T, 8, MX_FLOATS) \
  QUANTIZED_TRANSPOSED("nvfp4", DTYPE, T, 4, NV_FLOATS)

QUANTIZED_TRANSPOSED("k4", "float32", float, 4, K_QUANTS)
QUANTIZED_TRANSPOSED("k5", "float32", float, 5, K_QUANTS)
QUANTIZED_TRANSPOSED("k6", "float32", float, 6, K_QUANTS)

MLXP_EACH_DTYPE(QUANTIZED_TRANSPOSED_FORMATS)
