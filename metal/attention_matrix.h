#pragma once

#include "attention_common.h"

/** Keys of a tile: 32 KB of threadgroup memory take 32 rows of 128 floats, or 16 of 256. */
template <uint FRAGMENTS>
METAL_FUNC constexpr uint tile_keys() {
  return FRAGMENTS > 16 ? 16 : 32;
}

/** Elements from one row of a tile to the next; the odd 16 bytes spread the columns' banks. */
template <typename T>
METAL_FUNC uint tile_pitch(uint dim) {
  return (dim + ATTENTION_FRAGMENT - 1) / ATTENTION_FRAGMENT * ATTENTION_FRAGMENT +
         16 / uint(sizeof(T));
}

/** Rows of a tile of keys or values, each element read once; zeros past the end of either. */
template <typename T, uint BITS, uint KEYS>
METAL_FUNC void load_tile(
    threadgroup T* tile,
    const device stored_t<T, BITS>* data,
    const device T* scales,
    const device T* biases,
    constant AttentionView* views,
    constant AttentionParams& params,
    uint2 head, // batch, head
    KeySpan keys,
    uint thread_index,
    uint threads) {
  const uint parts = (params.dim + ATTENTION_PART - 1) / ATTENTION_PART;
  const uint pitch = tile_pitch<T>(params.dim);
  for (uint i = thread_index; i < KEYS * parts; i += threads) {
    const uint part = i % parts;
    const uint row = i / parts;
    const uint key = keys.first + row;
    float values[ATTENTION_PART];
    for (uint j = 0; j < ATTENTION_PART; j++) {
      values[j] = 0.0f;
    }
    if (key < keys.end) {
      if (BITS == 0) {
        const device T* from = row_of((const device T*)data, views[0], head.x, head.y, key);
        load_features<T, ATTENTION_PART>(
            values, from, views[0].strides[3], part * ATTENTION_PART, params.dim);
      } else {
        const long group = long(part * ATTENTION_PART / params.quantized_group);
        const device T* scale_row = row_of(scales, views[1], head.x, head.y, key);
        const device T* bias_row = row_of(biases, views[2], head.x, head.y, key);
        const float scale = float(scale_row[group * views[1].strides[3]]);
        const float bias = float(bias_row[group * views[2].strides[3]]);
        const device uint* from = row_of((const device uint*)data, views[0], head.x, head.y, key);
        load_codes<BITS == 0 ? 4 : BITS>(values, from, views[0].strides[3], part);
        for (uint j = 0; j < ATTENTION_PART; j++) {
          values[j] = scale * values[j] + bias;
        }
      }
    }
    for (uint j = 0; j < ATTENTION_PART; j++) {
      tile[row * pitch + part * ATTENTION_PART + j] = T(values[j]);
    }
  }
}

/** Of the four lanes that hold a row of a matrix. */
METAL_FUNC float row_max(float value) {
  value = larger_score(value, simd_shuffle_xor(value, ushort(1)));
  return larger_score(value, simd_shuffle_xor(value, ushort(8)));
}

METAL_FUNC float row_sum(float value) {
  value += simd_shuffle_xor(value, ushort(1));
  return value + simd_shuffle_xor(value, ushort(8));
}

/**
 * Eight rows for each SIMD group, up to FRAGMENTS * 8 features. Tiles of keys, then of values,
 * pass through threadgroup memory; queries, scores and outputs stay in registers. A lane holds
 * two neighbouring elements of a row of each 8x8 matrix.
 */
template <typename T, uint BITS, uint FRAGMENTS>
[[kernel]] void attention_matrix(
    const device T* q [[buffer(0)]],
    const device stored_t<T, BITS>* k [[buffer(1)]],
    const device T* k_scales [[buffer(2)]],
    const device T* k_biases [[buffer(3)]],
    const device stored_t<T, BITS>* v [[buffer(4)]],
    const device T* v_scales [[buffer(5)]],
    const device T* v_biases [[buffer(6)]],
    const device uchar* mask [[buffer(7)]],
    const device T* sinks [[buffer(8)]],
    device float* out [[buffer(9)]],
    constant AttentionParams& params [[buffer(10)]],
    threadgroup T* tile [[threadgroup(0)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  constexpr uint KEYS = tile_keys<FRAGMENTS>();
  constexpr uint COLUMNS = KEYS / ATTENTION_FRAGMENT;
  const uint threads = group_size.x;
  const uint kv_head = at.y;
  const uint batch = at.z / params.splits;
  const uint split = at.z % params.splits;
  const uint rows = params.group * params.queries;
  const uint fragments = (params.dim + ATTENTION_FRAGMENT - 1) / ATTENTION_FRAGMENT;
  const uint pitch = tile_pitch<T>(params.dim);

  // The layout of simdgroup_matrix.
  const uint matrix_y = (lane / 4 & 4) + lane / 2 % 4;
  const uint matrix_x = (lane / 4 & 2) * 2 + lane % 2 * 2;

  const uint block_rows = simds * ATTENTION_FRAGMENT;
  const uint row = at.x * block_rows + simd * ATTENTION_FRAGMENT + matrix_y;
  const bool exists = row < rows;
  const uint head = kv_head * params.group + row % params.group;
  const uint query = row / params.group;

  simdgroup_matrix<float, 8, 8> queries[FRAGMENTS];
  for (uint f = 0; f < FRAGMENTS; f++) {
    for (uint i = 0; i < 2; i++) {
      const uint feature = f * ATTENTION_FRAGMENT + matrix_x + i;
      float value = 0.0f;
      if (exists && feature < params.dim) {
        value = params.scale *
                float(row_of(q, params.q, batch, head, query)[long(feature) * params.q.strides[3]]);
      }
      queries[f].thread_elements()[i] = value;
    }
  }

  simdgroup_matrix<float, 8, 8> sums[FRAGMENTS];
  float maximum = MASKED_SCORE;
  float weight = 0.0f;
  const uint last_row = min(rows, (at.x + 1) * block_rows) - 1;
  KeySpan seen = spanned_keys(params, at.x * block_rows / params.group, last_row / params.group);
  if (params.mask_kind != ATTENTION_NO_MASK && params.splits > 1) {
    seen.first = 0; // a row that the mask leaves no key weighs all alike
    seen.end = params.keys;
  }
  KeySpan span = {max(seen.first, params.first), min(seen.end, params.end)};
  if (params.splits > 1) {
    span.first = max(span.first, params.first + split * params.chunk);
    span.end = min(span.end, params.first + (split + 1) * params.chunk);
  }

  // Twice where the mask left a row no key in the span: it weighs all keys alike.
  bool again = true;
  while (again) {
    maximum = MASKED_SCORE;
    weight = 0.0f;
    for (uint f = 0; f < FRAGMENTS; f++) {
      sums[f] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    for (uint base = span.first; base < span.end; base += KEYS) {
      const KeySpan keys = {base, min(span.end, base + KEYS)};
      threadgroup_barrier(mem_flags::mem_threadgroup);
      load_tile<T, BITS, KEYS>(
          tile,
          k,
          k_scales,
          k_biases,
          params.k,
          params,
          uint2(batch, kv_head),
          keys,
          thread_index,
          threads);
      threadgroup_barrier(mem_flags::mem_threadgroup);

      simdgroup_matrix<float, 8, 8> scores[COLUMNS];
      for (uint c = 0; c < COLUMNS; c++) {
        scores[c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      }
      for (uint f = 0; f < FRAGMENTS; f++) {
        if (f < fragments) {
          for (uint c = 0; c < COLUMNS; c++) {
            // Features down, keys across.
            const uint from =
                (c * ATTENTION_FRAGMENT + matrix_x) * pitch + f * ATTENTION_FRAGMENT + matrix_y;
            simdgroup_matrix<float, 8, 8> transposed;
            transposed.thread_elements()[0] = float(tile[from]);
            transposed.thread_elements()[1] = float(tile[from + pitch]);
            simdgroup_multiply_accumulate(scores[c], queries[f], transposed, scores[c]);
          }
        }
      }

      float grown = maximum;
      for (uint c = 0; c < COLUMNS; c++) {
        for (uint i = 0; i < 2; i++) {
          const uint key = base + c * ATTENTION_FRAGMENT + matrix_x + i;
          float score = -INFINITY;
          if (exists && key < keys.end) {
            score = finished_score<T>(
                scores[c].thread_elements()[i], mask, params, batch, kv_head, row, key);
          }
          scores[c].thread_elements()[i] = score;
          grown = larger_score(grown, score);
        }
      }
      grown = row_max(grown);
      const float factor = fast::exp(maximum - grown);
      maximum = grown;
      float added = 0.0f;
      for (uint c = 0; c < COLUMNS; c++) {
        for (uint i = 0; i < 2; i++) {
          const float score = fast::exp(scores[c].thread_elements()[i] - grown);
          scores[c].thread_elements()[i] = score;
          added += score;
        }
      }
      weight = weight * factor + row_sum(added);
      for (uint f = 0; f < FRAGMENTS; f++) {
        sums[f].thread_elements()[0] *= factor;
        sums[f].thread_elements()[1] *= factor;
      }

      threadgroup_barrier(mem_flags::mem_threadgroup);
      load_tile<T, BITS, KEYS>(
          tile,
          v,
          v_scales,
          v_biases,
          params.v,
          params,
          uint2(batch, kv_head),
          keys,
          thread_index,
          threads);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (uint f = 0; f < FRAGMENTS; f++) {
        if (f < fragments) {
          for (uint c = 0; c < COLUMNS; c++) {
            const uint from =
                (c * ATTENTION_FRAGMENT + matrix_y) * pitch + f * ATTENTION_FRAGMENT + matrix_x;
            simdgroup_matrix<float, 8, 8> values;
            values.thread_elements()[0] = float(tile[from]);
            values.thread_elements()[1] = float(tile[from + 1]);
            simdgroup_multiply_accumulate(sums[f], scores[c], values, sums[f]);
          }
        }
      }
    }
    again = false;
    if (params.mask_kind != ATTENTION_NO_MASK && params.splits == 1 &&
        span.end - span.first < params.keys) {
      // The threads agree through the tile, which nobody reads any more after the barrier.
      threadgroup_barrier(mem_flags::mem_threadgroup);
      const bool none = simd_any(exists && maximum == MASKED_SCORE);
      if (lane == 0) {
        tile[simd] = none ? T(1.0f) : T(0.0f);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (uint s = 0; s < simds; s++) {
        again = again || float(tile[s]) != 0.0f;
      }
      span.first = 0;
      span.end = params.keys;
    }
  }

  const uint heads = params.kv_heads * params.group;
  const size_t place = (size_t(batch) * heads + head) * params.queries + query;
  const size_t all_rows = size_t(params.batch) * heads * params.queries;
  const size_t partial = split * all_rows + place;
  float scale = 1.0f;
  if (params.splits == 1 && params.has_sinks != 0 && exists) {
    const float sink = float(sinks[head]);
    const float most = larger_score(maximum, sink);
    scale = fast::exp(maximum - most);
    weight = weight * scale + fast::exp(sink - most);
  }
  if (exists && params.splits > 1 && matrix_x == 0) {
    device float* kept = out + params.splits * all_rows * params.dim + 2 * partial;
    kept[0] = maximum;
    kept[1] = weight;
  }
  for (uint f = 0; f < FRAGMENTS; f++) {
    for (uint i = 0; i < 2; i++) {
      const uint feature = f * ATTENTION_FRAGMENT + matrix_x + i;
      if (exists && feature < params.dim) {
        const float sum = sums[f].thread_elements()[i];
        if (params.splits > 1) {
          out[partial * params.dim + feature] = sum;
        } else {
          ((device T*)out)[place * params.dim + feature] = T(sum * scale / weight);
        }
      }
    }
  }
}

/** Joins the splits of each row, a SIMD group a row; the partial results are read once. */
template <typename T>
[[kernel]] void attention_combine(
    const device float* partials [[buffer(0)]],
    const device T* sinks [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant AttentionParams& params [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  constexpr uint EACH = ATTENTION_DIM / SIMD_WIDTH;
  const uint heads = params.kv_heads * params.group;
  const size_t all_rows = size_t(params.batch) * heads * params.queries;
  const size_t row = size_t(group) * simds + simd;
  if (row >= all_rows) {
    return;
  }
  const device float* stats = partials + params.splits * all_rows * params.dim;
  const float sink = params.has_sinks != 0 ? float(sinks[row / params.queries % heads]) : 0.0f;

  float maximum = params.has_sinks != 0 ? larger_score(MASKED_SCORE, sink) : MASKED_SCORE;
  float weight = 0.0f;
  float sums[EACH];
  for (uint i = 0; i < EACH; i++) {
    sums[i] = 0.0f;
  }
  if (params.has_sinks != 0) {
    weight = fast::exp(sink - maximum);
  }
  for (uint base = 0; base < params.splits; base += SIMD_WIDTH) {
    const uint count = min(uint(SIMD_WIDTH), params.splits - base);
    float split_maximum = MASKED_SCORE;
    float split_weight = 0.0f;
    if (lane < count) {
      const device float* kept = stats + 2 * (size_t(base + lane) * all_rows + row);
      split_maximum = kept[0];
      split_weight = kept[1];
    }
    const float grown = larger_score(maximum, simd_max(split_maximum));
    const float before = fast::exp(maximum - grown);
    const float factor = fast::exp(split_maximum - grown);
    weight = weight * before + simd_sum(split_weight * factor);
    for (uint i = 0; i < EACH; i++) {
      sums[i] *= before;
    }
    maximum = grown;
    for (uint s = 0; s < count; s++) {
      const float share = simd_shuffle(factor, ushort(s));
      const device float* from = partials + (size_t(base + s) * all_rows + row) * params.dim;
      for (uint i = 0; i < EACH; i++) {
        const uint d = i * SIMD_WIDTH + lane;
        if (d < params.dim) {
          sums[i] += share * from[d];
        }
      }
    }
  }
  for (uint i = 0; i < EACH; i++) {
    const uint d = i * SIMD_WIDTH + lane;
    if (d < params.dim) {
      out[row * params.dim + d] = T(sums[i] / weight);
    }
  }
}
