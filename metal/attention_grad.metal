#include "attention_grad_rows.h"

// The backward pass for keys and values that are not quantized. One kernel writes three statistics
// of each row: its largest score, the inverse of the sum of its exponentials, and the sum of the
// products of its weights and their derivatives. The other kernels compute the scores again, and
// get the weights from these statistics.

/** Each SIMD group computes the statistics of eight rows. */
template <typename T, uint FEATURES>
[[kernel]] void attention_grad_stats(
    const device T* q [[buffer(0)]],
    const device T* k [[buffer(1)]],
    const device T* v [[buffer(2)]],
    const device T* g [[buffer(3)]],
    const device uchar* mask [[buffer(4)]],
    const device T* sinks [[buffer(5)]],
    device float* stats [[buffer(6)]],
    constant AttentionGradParams& params [[buffer(7)]],
    threadgroup T* scratch [[threadgroup(0)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  constexpr uint COLUMNS = attention_grad_simds(FEATURES * sizeof(T));
  constexpr uint ROOM = COLUMNS * ATTENTION_FRAGMENT;
  constexpr uint PITCH = tile_pitch<T, FEATURES>();
  const uint threads = group_size.x;
  const uint rows = params.group * params.queries;
  const uint matrix_y = (lane / 4 & 4) + lane / 2 % 4;
  const uint matrix_x = (lane / 4 & 2) * 2 + lane % 2 * 2;
  const uint block = simds * ATTENTION_FRAGMENT;
  const uint first = at.x * block;
  const uint own = first + simd * ATTENTION_FRAGMENT + matrix_y;
  const uint count = min(block, rows - first);
  const HeadRows of_rows = {at.z, at.y * params.group, params.group};
  const HeadRows of_keys = {at.z, at.y, 1};

  threadgroup T* tile = scratch;
  threadgroup T* queries = tile + ROOM * PITCH;
  threadgroup T* cotangents = queries + block * PITCH;
  load_head_rows<T, FEATURES>(
      queries, q, params.q, of_rows, params.dim, first, count, block, thread_index, threads);
  load_head_rows<T, FEATURES>(
      cotangents,
      g,
      params.g,
      of_rows,
      params.value_dim,
      first,
      count,
      block,
      thread_index,
      threads);
  const threadgroup T* own_queries = queries + simd * ATTENTION_FRAGMENT * PITCH;
  const threadgroup T* own_cotangents = cotangents + simd * ATTENTION_FRAGMENT * PITCH;

  float maximum = MASKED_SCORE;
  float weight = 0.0f;
  float delta = 0.0f;
  const KeySpan span = needed_keys(params, first, first + count - 1);
  for (uint base = span.first; base < span.end; base += ROOM) {
    const uint keys = min(ROOM, params.keys - base);
    simdgroup_matrix<float, 8, 8> grads[COLUMNS];
    simdgroup_matrix<float, 8, 8> scores[COLUMNS];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_head_rows<T, FEATURES>(
        tile, v, params.v, of_keys, params.value_dim, base, keys, ROOM, thread_index, threads);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply_rows<T, FEATURES, COLUMNS>(grads, own_cotangents, tile, matrix_x, matrix_y);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_head_rows<T, FEATURES>(
        tile, k, params.k, of_keys, params.dim, base, keys, ROOM, thread_index, threads);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply_rows<T, FEATURES, COLUMNS>(scores, own_queries, tile, matrix_x, matrix_y);

    float grown = maximum;
    for (uint c = 0; c < COLUMNS; c++) {
      for (uint i = 0; i < 2; i++) {
        const uint key = base + c * ATTENTION_FRAGMENT + matrix_x + i;
        const float product = scores[c].thread_elements()[i];
        const uint row = min(own, rows - 1);
        const float score = score_of<T>(product, mask, params, at.z, at.y, row, key).value;
        scores[c].thread_elements()[i] = score;
        grown = larger_score(grown, score);
      }
    }
    grown = row_max(grown);
    const float factor = fast::exp(maximum - grown);
    maximum = grown;
    float added = 0.0f;
    float added_delta = 0.0f;
    for (uint c = 0; c < COLUMNS; c++) {
      for (uint i = 0; i < 2; i++) {
        const float share = fast::exp(scores[c].thread_elements()[i] - grown);
        added += share;
        added_delta += share * grads[c].thread_elements()[i];
      }
    }
    weight = weight * factor + row_sum(added);
    delta = delta * factor + row_sum(added_delta);
  }
  if (own >= rows || matrix_x != 0) {
    return;
  }
  if (params.has_sinks != 0) {
    const float sink = float(sinks[at.y * params.group + own % params.group]);
    const float most = larger_score(maximum, sink);
    const float factor = fast::exp(maximum - most);
    weight = weight * factor + fast::exp(sink - most);
    delta *= factor;
    maximum = most;
  }
  const float inverse = 1.0f / weight;
  device float* kept =
      stats + ATTENTION_STATS * ((size_t(at.z) * params.kv_heads + at.y) * rows + own);
  kept[0] = maximum;
  kept[1] = inverse;
  kept[2] = delta * inverse;
}

/**
 * The derivatives with respect to queries, keys or values, or to an additive mask. Each SIMD group
 * computes eight rows of the derivatives and keeps the same eight rows of the inputs. The rows that
 * are multiplied with these rows pass through a tile in threadgroup memory. A lane holds two
 * neighboring elements of a row of each 8x8 matrix.
 */
template <typename T, uint FEATURES, uint KIND>
[[kernel]] void attention_grad(
    const device T* q [[buffer(0)]],
    const device T* k [[buffer(1)]],
    const device T* v [[buffer(2)]],
    const device T* g [[buffer(3)]],
    const device uchar* mask [[buffer(4)]],
    const device float* stats [[buffer(5)]],
    device T* out [[buffer(6)]],
    constant AttentionGradParams& params [[buffer(7)]],
    threadgroup T* scratch [[threadgroup(0)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  constexpr bool OF_MASK = KIND == ATTENTION_MASK;
  constexpr bool OF_ROWS = KIND == ATTENTION_QUERIES || OF_MASK;
  constexpr uint COLUMNS = attention_grad_simds(FEATURES * sizeof(T));
  constexpr uint ROOM = COLUMNS * ATTENTION_FRAGMENT;
  constexpr uint FRAGMENTS = FEATURES / ATTENTION_FRAGMENT;
  constexpr uint PITCH = tile_pitch<T, FEATURES>();
  const uint threads = group_size.x;
  const uint rows = params.group * params.queries;
  const uint matrix_y = (lane / 4 & 4) + lane / 2 % 4;
  const uint matrix_x = (lane / 4 & 2) * 2 + lane % 2 * 2;
  const uint block = simds * ATTENTION_FRAGMENT;
  const uint first = at.x * block;
  const uint own = first + simd * ATTENTION_FRAGMENT + matrix_y;
  const uint owned = OF_ROWS ? rows : params.keys;
  const uint count = min(block, owned - first);
  const HeadRows of_rows = {at.z, at.y * params.group, params.group};
  const HeadRows of_keys = {at.z, at.y, 1};

  // Threadgroup memory keeps the rows of this threadgroup: queries and the cotangents of their
  // outputs, or keys and values. KIND decides.
  threadgroup T* tile = scratch;
  threadgroup T* scored = tile + ROOM * PITCH;
  threadgroup T* weighed = scored + block * PITCH;
  if (OF_ROWS) {
    load_head_rows<T, FEATURES>(
        scored, q, params.q, of_rows, params.dim, first, count, block, thread_index, threads);
    load_head_rows<T, FEATURES>(
        weighed,
        g,
        params.g,
        of_rows,
        params.value_dim,
        first,
        count,
        block,
        thread_index,
        threads);
  } else {
    load_head_rows<T, FEATURES>(
        scored, k, params.k, of_keys, params.dim, first, count, block, thread_index, threads);
    if (KIND == ATTENTION_KEYS) {
      load_head_rows<T, FEATURES>(
          weighed,
          v,
          params.v,
          of_keys,
          params.value_dim,
          first,
          count,
          block,
          thread_index,
          threads);
    }
  }
  const threadgroup T* own_scored = scored + simd * ATTENTION_FRAGMENT * PITCH;
  const threadgroup T* own_weighed = weighed + simd * ATTENTION_FRAGMENT * PITCH;
  stats += ATTENTION_STATS * (size_t(at.z) * params.kv_heads + at.y) * rows;

  simdgroup_matrix<float, 8, 8> sums[FRAGMENTS];
  for (uint f = 0; f < FRAGMENTS; f++) {
    sums[f] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  const KeySpan span = OF_ROWS ? needed_keys(params, first, first + count - 1)
                               : needed_rows(params, first, first + count - 1);
  for (uint base = span.first; base < span.end; base += ROOM) {
    const uint met = min(ROOM, (OF_ROWS ? params.keys : rows) - base);
    simdgroup_matrix<float, 8, 8> grads[COLUMNS];
    simdgroup_matrix<float, 8, 8> scores[COLUMNS];
    if (KIND != ATTENTION_VALUES) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (OF_ROWS) {
        load_head_rows<T, FEATURES>(
            tile, v, params.v, of_keys, params.value_dim, base, met, ROOM, thread_index, threads);
      } else {
        load_head_rows<T, FEATURES>(
            tile, g, params.g, of_rows, params.value_dim, base, met, ROOM, thread_index, threads);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply_rows<T, FEATURES, COLUMNS>(grads, own_weighed, tile, matrix_x, matrix_y);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (OF_ROWS) {
      load_head_rows<T, FEATURES>(
          tile, k, params.k, of_keys, params.dim, base, met, ROOM, thread_index, threads);
    } else {
      load_head_rows<T, FEATURES>(
          tile, q, params.q, of_rows, params.dim, base, met, ROOM, thread_index, threads);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply_rows<T, FEATURES, COLUMNS>(scores, own_scored, tile, matrix_x, matrix_y);

    for (uint c = 0; c < COLUMNS; c++) {
      for (uint i = 0; i < 2; i++) {
        const uint other = base + c * ATTENTION_FRAGMENT + matrix_x + i;
        const uint row = OF_ROWS ? own : other;
        const uint key = OF_ROWS ? other : own;
        float value = 0.0f;
        if (row < rows && key < params.keys) {
          const float product = scores[c].thread_elements()[i];
          const Score score = score_of<T, OF_MASK>(product, mask, params, at.z, at.y, row, key);
          const device float* kept = stats + ATTENTION_STATS * size_t(row);
          value = fast::exp(score.value - kept[0]) * kept[1];
          if (KIND != ATTENTION_VALUES) {
            // If a row sees no key, its keys have equal weights for any scores: all slopes are 0.
            const float grad = value * (grads[c].thread_elements()[i] - kept[2]);
            value = score.slope == 0.0f ? 0.0f : grad * score.slope;
          }
          if (OF_MASK) {
            const size_t position = size_t(at.z) * params.queries + row / params.group;
            const uint head = at.y * params.group + row % params.group;
            out[(position * params.heads + head) * params.keys + key] = T(value);
          }
        }
        scores[c].thread_elements()[i] = value;
      }
    }
    if (OF_MASK) {
      continue;
    }
    if (KIND == ATTENTION_VALUES) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      load_head_rows<T, FEATURES>(
          tile, g, params.g, of_rows, params.value_dim, base, met, ROOM, thread_index, threads);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const threadgroup T* from = tile + (matrix_y * PITCH + matrix_x);
    for (uint f = 0; f < FRAGMENTS; f++) {
      for (uint c = 0; c < COLUMNS; c++) {
        const threadgroup T* pair =
            from + (c * ATTENTION_FRAGMENT * PITCH + f * ATTENTION_FRAGMENT);
        simdgroup_matrix<float, 8, 8> part;
        part.thread_elements()[0] = float(pair[0]);
        part.thread_elements()[1] = float(pair[1]);
        simdgroup_multiply_accumulate(sums[f], scores[c], part, sums[f]);
      }
    }
  }

  if (OF_MASK) {
    return;
  }
  const uint dim = KIND == ATTENTION_VALUES ? params.value_dim : params.dim;
  const uint heads = OF_ROWS ? params.heads : params.kv_heads;
  const uint head = OF_ROWS ? at.y * params.group + own % params.group : at.y;
  const uint position = OF_ROWS ? own / params.group : own;
  const uint positions = OF_ROWS ? params.queries : params.keys;
  out += ((size_t(at.z) * positions + position) * heads + head) * dim;
  for (uint f = 0; f < FRAGMENTS; f++) {
    for (uint i = 0; i < 2; i++) {
      const uint feature = f * ATTENTION_FRAGMENT + matrix_x + i;
      if (own < owned && feature < dim) {
        out[feature] = T(sums[f].thread_elements()[i]);
      }
    }
  }
}

/** The derivative with respect to the sink of each head. One SIMD group computes each head. */
template <typename T>
[[kernel]] void attention_grad_sinks(
    const device T* sinks [[buffer(0)]],
    const device float* stats [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant AttentionGradParams& params [[buffer(3)]],
    uint head [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const float sink = float(sinks[head]);
  float sum = 0.0f;
  for (uint batch = 0; batch < params.batch; batch++) {
    for (uint query = lane; query < params.queries; query += SIMD_WIDTH) {
      const size_t entry = size_t(batch) * params.heads + head - head % params.group;
      const size_t row = entry * params.queries + query * params.group + head % params.group;
      const device float* kept = stats + ATTENTION_STATS * row;
      sum -= fast::exp(sink - kept[0]) * kept[1] * kept[2];
    }
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    out[head] = T(sum);
  }
}

#define ATTENTION_GRAD_KERNELS(DTYPE, T)                                                           \
  MLXP_KERNEL("mlxp_attention_grad_stats_64_" DTYPE, attention_grad_stats<T, 64>)                  \
  MLXP_KERNEL("mlxp_attention_grad_stats_128_" DTYPE, attention_grad_stats<T, 128>)                \
  MLXP_KERNEL("mlxp_attention_grad_stats_256_" DTYPE, attention_grad_stats<T, 256>)                \
  MLXP_KERNEL("mlxp_attention_grad_queries_64_" DTYPE, attention_grad<T, 64, ATTENTION_QUERIES>)   \
  MLXP_KERNEL("mlxp_attention_grad_queries_128_" DTYPE, attention_grad<T, 128, ATTENTION_QUERIES>) \
  MLXP_KERNEL("mlxp_attention_grad_queries_256_" DTYPE, attention_grad<T, 256, ATTENTION_QUERIES>) \
  MLXP_KERNEL("mlxp_attention_grad_keys_64_" DTYPE, attention_grad<T, 64, ATTENTION_KEYS>)         \
  MLXP_KERNEL("mlxp_attention_grad_keys_128_" DTYPE, attention_grad<T, 128, ATTENTION_KEYS>)       \
  MLXP_KERNEL("mlxp_attention_grad_keys_256_" DTYPE, attention_grad<T, 256, ATTENTION_KEYS>)       \
  MLXP_KERNEL("mlxp_attention_grad_values_64_" DTYPE, attention_grad<T, 64, ATTENTION_VALUES>)     \
  MLXP_KERNEL("mlxp_attention_grad_values_128_" DTYPE, attention_grad<T, 128, ATTENTION_VALUES>)   \
  MLXP_KERNEL("mlxp_attention_grad_values_256_" DTYPE, attention_grad<T, 256, ATTENTION_VALUES>)   \
  MLXP_KERNEL("mlxp_attention_grad_mask_64_" DTYPE, attention_grad<T, 64, ATTENTION_MASK>)         \
  MLXP_KERNEL("mlxp_attention_grad_mask_128_" DTYPE, attention_grad<T, 128, ATTENTION_MASK>)       \
  MLXP_KERNEL("mlxp_attention_grad_mask_256_" DTYPE, attention_grad<T, 256, ATTENTION_MASK>)       \
  MLXP_KERNEL("mlxp_attention_grad_sinks_" DTYPE, attention_grad_sinks<T>)

MLXP_EACH_DTYPE(ATTENTION_GRAD_KERNELS)
