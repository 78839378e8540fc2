#pragma once

#include "attention_common.h"

/** Keys or values: elements, or words with the scale and bias of each group. */
template <typename T, uint BITS>
struct Stored {
  const device stored_t<T, BITS>* data;
  const device T* scales;
  const device T* biases;
};

/**
 * Eight features of a key or value for each lane. Only the first lane of a quantized group reads
 * its scale and bias, so every lane of the SIMD group has to come here; none reads if not `valid`.
 */
template <typename T, uint BITS>
METAL_FUNC void load_part(
    thread float* values,
    Stored<T, BITS> from,
    constant AttentionView* views, // of the data, the scales, the biases
    constant AttentionParams& params,
    uint3 place, // batch, head, key
    uint part,
    bool valid,
    uint lane) {
  valid = valid && part * ATTENTION_PART < params.dim;
  for (uint i = 0; i < ATTENTION_PART; i++) {
    values[i] = 0.0f;
  }
  if (BITS == 0) {
    if (valid) {
      const device T* row = row_of((const device T*)from.data, views[0], place.x, place.y, place.z);
      load_features<T, ATTENTION_PART>(
          values, row, views[0].strides[3], part * ATTENTION_PART, params.dim);
    }
    return;
  }
  const uint sharing = params.quantized_group / ATTENTION_PART;
  const uint leader = part % sharing;
  float2 affine = float2(0.0f);
  if (valid && leader == 0) {
    const long group = long(part / sharing);
    const device T* scale = row_of(from.scales, views[1], place.x, place.y, place.z);
    const device T* bias = row_of(from.biases, views[2], place.x, place.y, place.z);
    affine.x = float(scale[group * views[1].strides[3]]);
    affine.y = float(bias[group * views[2].strides[3]]);
  }
  affine = simd_shuffle(affine, ushort(lane - leader));
  if (valid) {
    const device uint* row =
        row_of((const device uint*)from.data, views[0], place.x, place.y, place.z);
    load_codes<BITS == 0 ? 4 : BITS>(values, row, views[0].strides[3], part);
    for (uint i = 0; i < ATTENTION_PART; i++) {
      values[i] = affine.x * values[i] + affine.y;
    }
  }
}

/**
 * Up to ROWS rows of a key-value head with a split of its keys. `lanes` neighbouring lanes share
 * a key, with eight features each; every such worker has a maximum and a sum of its own until
 * the end. Each key and value is read once, for all the rows.
 */
template <typename T, uint BITS, uint ROWS>
[[kernel]] void attention_vector(
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
    threadgroup float* scratch [[threadgroup(0)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const uint threads = group_size.x;
  const uint kv_head = at.y;
  const uint batch = at.z;
  const uint rows = params.group * params.queries;
  const uint lanes = params.lanes;
  const uint part = lane % lanes;
  const uint worker = simd * (SIMD_WIDTH / lanes) + lane / lanes;
  const uint workers = simds * (SIMD_WIDTH / lanes);
  const uint first = params.first + at.x * params.chunk;
  const uint end = min(params.end, first + params.chunk);
  const Stored<T, BITS> keys = {k, k_scales, k_biases};
  const Stored<T, BITS> values = {v, v_scales, v_biases};

  // The queries once for all workers; the scratch has another use only after a barrier.
  for (uint i = thread_index; i < rows * lanes; i += threads) {
    const uint r = i / lanes;
    const uint head = kv_head * params.group + r % params.group;
    const device T* row = row_of(q, params.q, batch, head, r / params.group);
    float features[ATTENTION_PART];
    load_features<T, ATTENTION_PART>(
        features, row, params.q.strides[3], i % lanes * ATTENTION_PART, params.dim);
    for (uint j = 0; j < ATTENTION_PART; j++) {
      scratch[i * ATTENTION_PART + j] = features[j] * params.scale;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float query[ROWS][ATTENTION_PART];
  float sums[ROWS][ATTENTION_PART];
  float maximum[ROWS];
  float weight[ROWS];
  for (uint r = 0; r < ROWS; r++) {
    maximum[r] = MASKED_SCORE;
    weight[r] = 0.0f;
    for (uint i = 0; i < ATTENTION_PART; i++) {
      query[r][i] = r < rows ? scratch[(r * lanes + part) * ATTENTION_PART + i] : 0.0f;
      sums[r][i] = 0.0f;
    }
  }

  // At each step the workers take neighbouring keys.
  for (uint base = first; base < end; base += workers * ATTENTION_TILE) {
    float scores[ROWS][ATTENTION_TILE];
    for (uint i = 0; i < ATTENTION_TILE; i++) {
      const uint key = base + i * workers + worker;
      float features[ATTENTION_PART];
      load_part<T, BITS>(
          features, keys, params.k, params, uint3(batch, kv_head, key), part, key < end, lane);
      for (uint r = 0; r < ROWS; r++) {
        if (r < rows) {
          float score = 0.0f;
          for (uint j = 0; j < ATTENTION_PART; j++) {
            score += query[r][j] * features[j];
          }
          for (uint step = lanes / 2; step > 0; step /= 2) {
            score += simd_shuffle_xor(score, ushort(step));
          }
          scores[r][i] = -INFINITY;
          if (key < end) {
            scores[r][i] = finished_score<T>(score, mask, params, batch, kv_head, r, key);
          }
        }
      }
    }
    for (uint r = 0; r < ROWS; r++) {
      if (r < rows) {
        float grown = maximum[r];
        for (uint i = 0; i < ATTENTION_TILE; i++) {
          grown = larger_score(grown, scores[r][i]);
        }
        if (grown > maximum[r]) {
          const float factor = fast::exp(maximum[r] - grown);
          weight[r] *= factor;
          for (uint j = 0; j < ATTENTION_PART; j++) {
            sums[r][j] *= factor;
          }
          maximum[r] = grown;
        }
        for (uint i = 0; i < ATTENTION_TILE; i++) {
          scores[r][i] = fast::exp(scores[r][i] - grown);
          weight[r] += scores[r][i];
        }
      }
    }
    for (uint i = 0; i < ATTENTION_TILE; i++) {
      const uint key = base + i * workers + worker;
      float features[ATTENTION_PART];
      load_part<T, BITS>(
          features, values, params.v, params, uint3(batch, kv_head, key), part, key < end, lane);
      for (uint r = 0; r < ROWS; r++) {
        if (r < rows) {
          for (uint j = 0; j < ATTENTION_PART; j++) {
            sums[r][j] += scores[r][i] * features[j];
          }
        }
      }
    }
  }

  // The workers of a SIMD group, then the SIMD groups.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup float* stats = scratch;
  threadgroup float* slots = scratch + 2 * ROWS * simds;
  for (uint r = 0; r < ROWS; r++) {
    if (r < rows) {
      for (uint step = lanes; step < SIMD_WIDTH; step *= 2) {
        const float together = larger_score(maximum[r], simd_shuffle_xor(maximum[r], ushort(step)));
        const float factor = fast::exp(maximum[r] - together);
        maximum[r] = together;
        weight[r] *= factor;
        weight[r] += simd_shuffle_xor(weight[r], ushort(step));
        for (uint j = 0; j < ATTENTION_PART; j++) {
          sums[r][j] *= factor;
          sums[r][j] += simd_shuffle_xor(sums[r][j], ushort(step));
        }
      }
      if (lane == 0) {
        stats[2 * (r * simds + simd)] = maximum[r];
        stats[2 * (r * simds + simd) + 1] = weight[r];
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const uint heads = params.kv_heads * params.group;
  const size_t all_rows = size_t(params.batch) * heads * params.queries;
  for (uint r = 0; r < rows; r++) {
    float together = MASKED_SCORE;
    for (uint s = 0; s < simds; s++) {
      together = larger_score(together, stats[2 * (r * simds + s)]);
    }
    float total = 0.0f;
    for (uint s = 0; s < simds; s++) {
      total += stats[2 * (r * simds + s) + 1] * fast::exp(stats[2 * (r * simds + s)] - together);
    }
    for (uint row = 0; row < ROWS; row++) {
      if (row == r && lane < lanes) { // an index of constants keeps the sums in registers
        const float factor = fast::exp(maximum[row] - together);
        for (uint j = 0; j < ATTENTION_PART; j++) {
          slots[(simd * lanes + part) * ATTENTION_PART + j] = sums[row][j] * factor;
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint head = kv_head * params.group + r % params.group;
    const size_t row = (size_t(batch) * heads + head) * params.queries + r / params.group;
    const size_t partial = at.x * all_rows + row;
    if (params.splits > 1 && thread_index == 0) {
      device float* kept = out + params.splits * all_rows * params.dim + 2 * partial;
      kept[0] = together;
      kept[1] = total;
    }
    float scale = 1.0f;
    if (params.splits == 1 && params.has_sinks != 0) {
      const float sink = float(sinks[head]);
      const float most = larger_score(together, sink);
      scale = fast::exp(together - most);
      total = total * scale + fast::exp(sink - most);
    }
    for (uint d = thread_index; d < params.dim; d += threads) {
      float sum = 0.0f;
      for (uint s = 0; s < simds; s++) {
        sum += slots[s * lanes * ATTENTION_PART + d];
      }
      if (params.splits > 1) {
        out[partial * params.dim + d] = sum;
      } else {
        ((device T*)out)[row * params.dim + d] = T(sum * scale / total);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
