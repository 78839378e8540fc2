#pragma once

#include "attention_tile.h"

/**
 * Each SIMD group computes eight rows with up to FEATURES features. Threadgroup memory holds the
 * queries. Tiles of keys, then tiles of values, pass through it. Scores and outputs stay in
 * registers. A lane holds two neighboring elements of a row of each 8x8 matrix.
 */
template <typename T, uint BITS, uint FEATURES, bool PLAIN>
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
    threadgroup T* scratch [[threadgroup(0)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  constexpr uint KEYS = attention_tile_keys(FEATURES * sizeof(T));
  constexpr uint COLUMNS = KEYS / ATTENTION_FRAGMENT;
  constexpr uint FRAGMENTS = FEATURES / ATTENTION_FRAGMENT;
  constexpr uint PITCH = tile_pitch<T, FEATURES>();
  const uint threads = group_size.x;
  const uint kv_head = at.y;
  const uint batch = at.z / params.splits;
  const uint split = at.z % params.splits;
  const uint rows = params.group * params.queries;

  // The row and the column of a lane's first element in a simdgroup_matrix.
  const uint matrix_y = (lane / 4 & 4) + lane / 2 % 4;
  const uint matrix_x = (lane / 4 & 2) * 2 + lane % 2 * 2;

  const uint block_rows = simds * ATTENTION_FRAGMENT;
  const uint first_row = at.x * block_rows + simd * ATTENTION_FRAGMENT;
  const uint row = first_row + matrix_y;
  const bool exists = row < rows;
  const uint head = kv_head * params.group + row % params.group;
  const uint query = row / params.group;

  // The scratch memory has a tile, then the offsets at which the arrays and the mask's rows begin,
  // then the queries.
  threadgroup T* tile = scratch;
  threadgroup long* begins = (threadgroup long*)(tile + KEYS * PITCH);
  threadgroup T* all_queries = (threadgroup T*)(begins + (PLAIN ? 0 : ATTENTION_BEGINS));
  for (uint i = thread_index; i < block_rows * FEATURES; i += threads) {
    const uint feature = i % FEATURES;
    const uint r = at.x * block_rows + i / FEATURES;
    T value = T(0.0f);
    if (r < rows && feature < params.dim) {
      const uint r_head = kv_head * params.group + r % params.group;
      value = row_of(q, params.q, batch, r_head, r / params.group)[feature * params.q.strides[3]];
    }
    all_queries[i / FEATURES * PITCH + feature] = value;
  }
  // The address of this lane's two elements in the first 8x8 matrix of its SIMD group's queries.
  const threadgroup T* own_queries =
      all_queries + ((simd * ATTENTION_FRAGMENT + matrix_y) * PITCH + matrix_x);

  simdgroup_matrix<float, 8, 8> sums[FRAGMENTS];
  float maximum = MASKED_SCORE;
  float weight = 0.0f;
  const uint last_row = min(rows, (at.x + 1) * block_rows) - 1;
  KeySpan seen = spanned_keys(params, at.x * block_rows / params.group, last_row / params.group);
  if (!PLAIN && params.mask_kind != ATTENTION_NO_MASK && params.splits > 1) {
    seen.first = 0; // a row whose keys are all masked weighs them equally
    seen.end = params.keys;
  }
  // The first tile begins at a multiple of KEYS, unless the keys of the launch or of the split
  // begin later.
  uint first = max(seen.first / KEYS * KEYS, params.first);
  uint end = min(seen.end, params.end);
  if (params.splits > 1) {
    first = max(first, params.first + split * params.chunk);
    end = min(end, params.first + (split + 1) * params.chunk);
  }
  // The keys that this row sees, and the keys that all rows of the SIMD group see without a mask.
  const KeySpan own = visible_keys(params, query);
  const KeySpan shared = {
      visible_keys(params, (first_row + ATTENTION_FRAGMENT - 1) / params.group).first,
      visible_keys(params, first_row / params.group).end};
  // Plain rows have a constant stride. For other layouts, threadgroup memory holds the offsets at
  // which the arrays and the mask's rows begin.
  const device T* keys = (const device T*)k;
  const device T* values = (const device T*)v;
  if (PLAIN) {
    const uint copied = first + first_copied<T, FEATURES>(thread_index);
    keys = row_of(keys, params.k[0], batch, kv_head, copied);
    values = row_of(values, params.v[0], batch, kv_head, copied);
  } else if (thread_index < 6) {
    constant AttentionView& view =
        thread_index < 3 ? params.k[thread_index] : params.v[thread_index - 3];
    begins[thread_index] =
        view.start + long(batch) * view.strides[0] + long(kv_head) * view.strides[1];
  }
  threadgroup long* begin_of_mask = begins + (6 + simd * ATTENTION_FRAGMENT + matrix_y);
  if (!PLAIN && matrix_x == 0) {
    *begin_of_mask = mask_of_row(params, batch, head, query);
  }

  // If the mask hides all keys of a row in the span, run again over all keys, because this row
  // gives equal weights to all keys.
  for (uint pass = 0; pass < 2; pass++) {
    maximum = MASKED_SCORE;
    weight = 0.0f;
    for (uint f = 0; f < FRAGMENTS; f++) {
      sums[f] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    for (uint base = first; base < end; base += KEYS) {
      const uint count = min(end - base, KEYS);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (PLAIN) {
        const long stride = params.k[0].strides[2];
        load_plain_tile<T, FEATURES>(tile, keys, stride, count, thread_index, threads);
        keys += long(KEYS) * stride;
      } else {
        load_tile<T, BITS, FEATURES>(
            tile,
            Stored<T, BITS>{k, k_scales, k_biases},
            begins,
            params.k,
            params,
            params.dim,
            base,
            count,
            thread_index,
            threads);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);

      simdgroup_matrix<float, 8, 8> scores[COLUMNS];
      for (uint c = 0; c < COLUMNS; c++) {
        scores[c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      }
      for (uint f = 0; f < FRAGMENTS; f++) {
        simdgroup_matrix<float, 8, 8> queries;
        const packed2<T> pair =
            *(const threadgroup packed2<T>*)(own_queries + f * ATTENTION_FRAGMENT);
        queries.thread_elements()[0] = float(pair[0]);
        queries.thread_elements()[1] = float(pair[1]);
        for (uint c = 0; c < COLUMNS; c++) {
          // Features down, keys across.
          const threadgroup T* from =
              tile + ((c * ATTENTION_FRAGMENT + matrix_x) * PITCH + matrix_y);
          simdgroup_matrix<float, 8, 8> transposed;
          transposed.thread_elements()[0] = float(from[f * ATTENTION_FRAGMENT]);
          transposed.thread_elements()[1] = float(from[f * ATTENTION_FRAGMENT + PITCH]);
          simdgroup_multiply_accumulate(scores[c], queries, transposed, scores[c]);
        }
      }

      float grown = maximum;
      const bool masked = !PLAIN && params.mask_kind != ATTENTION_NO_MASK;
      const bool edge = masked || base < shared.first || base + KEYS > shared.end || count < KEYS;
      for (uint c = 0; c < COLUMNS; c++) {
        for (uint i = 0; i < 2; i++) {
          const uint key = base + c * ATTENTION_FRAGMENT + matrix_x + i;
          float score = params.scale * scores[c].thread_elements()[i];
          if (params.soft_cap > 0.0f) {
            score = capped_score(score, params.soft_cap);
          }
          if (edge) {
            if (masked && exists && key < end) {
              const long at = *begin_of_mask + long(key) * params.mask.strides[3];
              score = masked_score<T>(score, mask, params, at);
            }
            score = seen_score(score, key, own);
            score = key < end ? score : -INFINITY;
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
      if (PLAIN) {
        const long stride = params.v[0].strides[2];
        load_plain_tile<T, FEATURES>(tile, values, stride, count, thread_index, threads);
        values += long(KEYS) * stride;
      } else {
        load_tile<T, BITS, FEATURES>(
            tile,
            Stored<T, BITS>{v, v_scales, v_biases},
            begins + 3,
            params.v,
            params,
            params.value_dim,
            base,
            count,
            thread_index,
            threads);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (uint f = 0; f < FRAGMENTS; f++) {
        for (uint c = 0; c < COLUMNS; c++) {
          const threadgroup T* from =
              tile + ((c * ATTENTION_FRAGMENT + matrix_y) * PITCH + matrix_x);
          const packed2<T> pair = *(const threadgroup packed2<T>*)(from + f * ATTENTION_FRAGMENT);
          simdgroup_matrix<float, 8, 8> part;
          part.thread_elements()[0] = float(pair[0]);
          part.thread_elements()[1] = float(pair[1]);
          simdgroup_multiply_accumulate(sums[f], scores[c], part, sums[f]);
        }
      }
    }
    if (PLAIN || params.mask_kind == ATTENTION_NO_MASK || params.splits > 1 || pass == 1 ||
        end - first == params.keys) {
      break;
    }
    // Each SIMD group writes its flag to the tile, whose contents are not needed after the barrier.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const bool none = simd_any(exists && maximum == MASKED_SCORE);
    if (lane == 0) {
      tile[simd] = none ? T(1.0f) : T(0.0f);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float some = 0.0f;
    for (uint s = 0; s < simds; s++) {
      some += float(tile[s]);
    }
    if (some == 0.0f) {
      break;
    }
    first = 0;
    end = params.keys;
  }

  const uint heads = params.kv_heads * params.group;
  const size_t place = (size_t(batch) * params.queries + query) * heads + head;
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
    device float* kept = out + params.splits * all_rows * params.value_dim + 2 * partial;
    kept[0] = maximum;
    kept[1] = weight;
  }
  for (uint f = 0; f < FRAGMENTS; f++) {
    for (uint i = 0; i < 2; i++) {
      const uint feature = f * ATTENTION_FRAGMENT + matrix_x + i;
      if (exists && feature < params.value_dim) {
        const float sum = sums[f].thread_elements()[i];
        if (params.splits > 1) {
          out[partial * params.value_dim + feature] = sum;
        } else {
          ((device T*)out)[place * params.value_dim + feature] = T(sum * scale / weight);
        }
      }
    }
  }
}

/** Combines the splits of each row with one SIMD group, which reads the partial results once. */
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
  const device float* stats = partials + params.splits * all_rows * params.value_dim;
  const float sink = params.has_sinks != 0 ? float(sinks[row % heads]) : 0.0f;

  float maximum = params.has_sinks != 0 ? larger_score(MASKED_SCORE, sink) : MASKED_SCORE;
  float weight = 0.0f;
  float sums[EACH];
  for (uint i = 0; i < EACH; i++) {
    sums[i] = 0.0f;
  }
  if (params.has_sinks != 0) {
    weight = fast::exp(sink - maximum);
  }
  // `params.before` is the number of skipped splits modulo SIMD_WIDTH. So a split has the same lane
  // in launches that begin with different splits.
  const uint end = params.before + params.splits;
  for (uint base = 0; base < end; base += SIMD_WIDTH) {
    const uint head = base == 0 ? params.before : 0;
    const uint tail = min(uint(SIMD_WIDTH), end - base);
    float split_maximum = MASKED_SCORE;
    float split_weight = 0.0f;
    if (lane >= head && lane < tail) {
      const size_t split = base + lane - params.before;
      const device float* kept = stats + 2 * (split * all_rows + row);
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
    for (uint s = head; s < tail; s++) {
      const float share = simd_shuffle(factor, ushort(s));
      const size_t split = base + s - params.before;
      const device float* from = partials + (split * all_rows + row) * params.value_dim;
      for (uint i = 0; i < EACH; i++) {
        const uint d = i * SIMD_WIDTH + lane;
        if (d < params.value_dim) {
          sums[i] += share * from[d];
        }
      }
    }
  }
  for (uint i = 0; i < EACH; i++) {
    const uint d = i * SIMD_WIDTH + lane;
    if (d < params.value_dim) {
      out[row * params.value_dim + d] = T(sums[i] / weight);
    }
  }
}
