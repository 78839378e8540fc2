#pragma once

#include "attention_common.h"

/** Elements from one row of a tile to the next. 16 extra bytes spread columns over the banks. */
template <typename T, uint FEATURES>
METAL_FUNC constexpr uint tile_pitch() {
  return FEATURES + 16 / sizeof(T);
}

/** The first row of a tile that a thread copies. */
template <typename T, uint FEATURES>
METAL_FUNC uint first_copied(uint thread_index) {
  return thread_index * attention_tile_keys(FEATURES * sizeof(T)) /
         (ATTENTION_MATRIX_SIMDS * SIMD_WIDTH);
}

/**
 * Copies `count` rows of FEATURES contiguous elements to a tile, with zeros after these rows. Each
 * thread copies quads of the row that begins at `from`, then of every `threads / OF_ROW`th row
 * after it. OF_ROW threads copy a row, and take its quads in turn.
 */
template <typename T, uint FEATURES>
METAL_FUNC void load_plain_tile(
    threadgroup T* tile,
    const device T* from,
    long stride,
    uint count,
    uint thread_index,
    uint threads) {
  constexpr uint KEYS = attention_tile_keys(FEATURES * sizeof(T));
  constexpr uint OF_ROW = ATTENTION_MATRIX_SIMDS * SIMD_WIDTH / KEYS; // threads
  const uint first = thread_index % OF_ROW * READS;
  const uint step = threads / OF_ROW;
  for (uint row = first_copied<T, FEATURES>(thread_index); row < KEYS;
       row += step, from += long(step) * stride) {
    threadgroup T* to = tile + (row * tile_pitch<T, FEATURES>() + first);
    if (row < count) {
      for (uint at = 0; at < FEATURES; at += OF_ROW * READS) {
        const packed4<T> quad = *(const device packed4<T>*)(from + first + at);
        for (uint j = 0; j < READS; j++) {
          to[at + j] = quad[j];
        }
      }
    } else {
      for (uint at = 0; at < FEATURES; at += OF_ROW * READS) {
        for (uint j = 0; j < READS; j++) {
          to[at + j] = T(0.0f);
        }
      }
    }
  }
}

/**
 * Copies `count` rows from `first` on to a tile, with zeros after these rows and after `dim`
 * features. `begins` has the offsets of data, scales and biases. A thread computes each position
 * again, because it has few registers.
 */
template <typename T, uint BITS, uint FEATURES>
METAL_FUNC void load_tile(
    threadgroup T* tile,
    Stored<T, BITS> all,
    const threadgroup long* begins,
    constant AttentionView* views, // of the data, the scales, the biases
    constant AttentionParams& params,
    uint dim, // features of a row
    uint first,
    uint count,
    uint thread_index,
    uint threads) {
  constexpr uint PART = BITS == 0 ? READS : 32 / BITS; // elements, or the codes of a word
  constexpr uint OF_ROW = FEATURES / PART;
#pragma clang loop unroll(disable)
  for (uint i = thread_index; i < attention_tile_keys(FEATURES * sizeof(T)) * OF_ROW;
       i += threads) {
    const uint row = i / OF_ROW;
    const uint at = i % OF_ROW * PART;
    float features[PART];
    for (uint j = 0; j < PART; j++) {
      features[j] = 0.0f;
    }
    if (row < count && at < dim) {
      const long key = long(first + row);
      const device stored_t<T, BITS>* data = all.data + begins[0] + key * views[0].strides[2];
      if (BITS == 0) {
        load_features<T, PART>(features, (const device T*)data, views[0].strides[3], at, dim);
      } else {
        const long group = long(at / params.quantized_group);
        const float scale =
            float(all.scales[begins[1] + key * views[1].strides[2] + group * views[1].strides[3]]);
        const float bias =
            float(all.biases[begins[2] + key * views[2].strides[2] + group * views[2].strides[3]]);
        const uint word = ((const device uint*)data)[long(at / PART) * views[0].strides[3]];
        for (uint j = 0; j < PART; j++) {
          features[j] = fma(scale, float(word >> (BITS * j) & ((1u << BITS) - 1)), bias);
        }
      }
    }
    for (uint j = 0; j < PART; j++) {
      tile[row * tile_pitch<T, FEATURES>() + at + j] = T(features[j]);
    }
  }
}
