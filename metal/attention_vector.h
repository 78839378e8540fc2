#pragma once

#include "attention_common.h"

/**
 * The part of one head's row that a lane loads: the features from `part * PART` on, with the scale
 * and the bias of the group that contains these features.
 */
template <typename T, uint BITS, uint PART>
METAL_FUNC Stored<T, BITS> part_of_row(
    Stored<T, BITS> all,
    constant AttentionView* views, // of the data, the scales, the biases
    constant AttentionParams& params,
    uint3 place, // batch, head, row
    uint part) {
  const long elements = part * PART / (BITS == 0 ? 1 : 32 / BITS);
  all.data = row_of(all.data, views[0], place.x, place.y, place.z) + elements * views[0].strides[3];
  if (BITS != 0) {
    const long group = part * PART / params.quantized_group;
    all.scales =
        row_of(all.scales, views[1], place.x, place.y, place.z) + group * views[1].strides[3];
    all.biases =
        row_of(all.biases, views[2], place.x, place.y, place.z) + group * views[2].strides[3];
  }
  return all;
}

/** The type of loaded features: elements, or the numbers that quantized codes represent. */
template <typename T, uint BITS>
using feature_t = conditional_t<BITS == 0, T, float>;

/** Loads a part of a key or a value, with zeros past its end. Moves `from` ahead by `rows` rows.
 * If the part begins past the end of keys and of values, `features` stays unchanged. */
template <typename T, uint BITS, uint PART>
METAL_FUNC void load_part(
    thread feature_t<T, BITS>* features,
    thread Stored<T, BITS>& from,
    constant AttentionView* views,
    constant AttentionParams& params,
    uint part,
    uint dim, // features of a row
    uint rows) {
  const uint most = max(params.dim, params.value_dim);
  if (part * PART < most) {
    const long step = views[0].strides[3];
    if (BITS == 0) {
      const device T* row = (const device T*)from.data;
      if (step == 1 && dim % PART == 0 && dim == most) {
        for (uint i = 0; i < PART; i += PART < READS ? PART : READS) {
          if (PART < READS) {
            const packed2<T> two = *(const device packed2<T>*)row;
            features[0] = two[0];
            features[1] = two[1];
          } else {
            const packed4<T> quad = *(const device packed4<T>*)(row + i);
            for (uint j = 0; j < READS; j++) {
              features[i + j] = quad[j];
            }
          }
        }
      } else {
        for (uint i = 0; i < PART; i++) {
          features[i] = part * PART + i < dim ? row[long(i) * step] : T(0.0f);
        }
      }
    } else if (dim == most || part * PART < dim) {
      constexpr uint codes = BITS == 0 ? 1 : 32 / BITS; // of a word
      constexpr uint words = PART < codes ? 1 : PART / codes;
      const float scale = float(*from.scales);
      const float bias = float(*from.biases);
      for (uint w = 0; w < words; w++) {
        const uint word =
            ((const device uint*)from.data)[long(w) * step] >> (part * PART % codes * BITS);
        for (uint i = 0; i < PART / words; i++) {
          const float code = float(word >> (BITS * i) & ((1u << BITS) - 1));
          features[w * codes + i] = feature_t<T, BITS>(fma(scale, code, bias));
        }
      }
    } else {
      for (uint i = 0; i < PART; i++) {
        features[i] = feature_t<T, BITS>(0.0f);
      }
    }
  }
  from.data += long(rows) * views[0].strides[2];
  if (BITS != 0) {
    from.scales += long(rows) * views[1].strides[2];
    from.biases += long(rows) * views[2].strides[2];
  }
}

/**
 * Adds sums across lanes. Each lane sends N of its 2 N sums to the lane at this distance, and adds
 * the N sums that it receives to its other N sums.
 */
template <uint N>
METAL_FUNC void exchange(thread float* sums, uint distance, uint lane) {
  const bool upper = (lane & distance) != 0;
  for (uint i = 0; i < N; i++) {
    const float given = upper ? sums[i] : sums[i + N];
    const float kept = upper ? sums[i + N] : sums[i];
    sums[i] = kept + simd_shuffle_xor(given, ushort(distance));
  }
}

/** Sums each of eight values over a SIMD group. Lanes 4 i to 4 i + 3 (slot i) get the sum of value
 * i. */
METAL_FUNC float sum_of_slot(thread float* eight, uint lane) {
  exchange<4>(eight, 16, lane);
  exchange<2>(eight, 8, lane);
  exchange<1>(eight, 4, lane);
  const float sum = eight[0] + simd_shuffle_xor(eight[0], ushort(2));
  return sum + simd_shuffle_xor(sum, ushort(1));
}

/**
 * The distance between two lanes that keep scores of the same row, for keys whose indices differ by
 * the power of two `bit`.
 */
template <uint ROWS>
METAL_FUNC ushort lanes_apart(uint bit) {
  constexpr uint together = ATTENTION_TILE / ROWS;
  return ushort(bit < together ? bit * ROWS * (SIMD_WIDTH / ATTENTION_TILE) : bit / together);
}

/**
 * Computes a block of up to ROWS rows of a key-value head with a split of its keys. The lanes of a
 * SIMD group share a key, and each lane has PART of its features. Every SIMD group keeps separate
 * maxima and sums until the end. The block reads each key and value once for all rows. The order of
 * additions in a row does not depend on ROWS.
 */
template <typename T, uint BITS, uint ROWS, uint PART>
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
  constexpr uint TOGETHER = ATTENTION_TILE / ROWS; // keys whose scores are summed together
  constexpr uint UNROLLED = ROWS * PART < 64 ? ROWS : 1;
  constexpr bool HELD = ROWS * PART <= 16; // whether registers hold the queries
  const uint threads = group_size.x;
  const uint kv_head = at.y;
  const uint batch = at.z % params.batch;
  const uint top = at.z / params.batch * ROWS; // the first row of the block
  const uint rows = min(params.group * params.queries - top, ROWS);
  const uint part = lane;
  const uint first = params.first + at.x * params.chunk;
  const uint end = min(params.end, first + params.chunk);
  Stored<T, BITS> keys = part_of_row<T, BITS, PART>(
      Stored<T, BITS>{k, k_scales, k_biases},
      params.k,
      params,
      uint3(batch, kv_head, first + simd),
      part);
  Stored<T, BITS> values = part_of_row<T, BITS, PART>(
      Stored<T, BITS>{v, v_scales, v_biases},
      params.v,
      params,
      uint3(batch, kv_head, first + simd),
      part);

  // Load the queries once for all SIMD groups. The scratch is reused only after a barrier.
  for (uint i = thread_index; i < ROWS * SIMD_WIDTH; i += threads) {
    const uint r = top + min(i / SIMD_WIDTH, rows - 1);
    const uint head = kv_head * params.group + r % params.group;
    const device T* row = row_of(q, params.q, batch, head, r / params.group);
    float features[PART];
    load_features<T, PART>(features, row, params.q.strides[3], i % SIMD_WIDTH * PART, params.dim);
    for (uint j = 0; j < PART; j++) {
      scratch[i * PART + j] = features[j] * params.scale;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float query[HELD ? ROWS * PART : 1];
  float sums[ROWS][PART];
  for (uint r = 0; r < ROWS; r++) {
    for (uint i = 0; i < PART; i++) {
      if (HELD) {
        query[r * PART + i] = scratch[(r * SIMD_WIDTH + part) * PART + i];
      }
      sums[r][i] = 0.0f;
    }
  }

  // Four lanes form a slot, for one row and one of TOGETHER keys. Iteration x of the loop below
  // computes a score for each slot. Each lane of a slot keeps every fourth score, in reverse order.
  constexpr uint OF_SLOT = SIMD_WIDTH / ATTENTION_TILE; // lanes
  constexpr uint KEPT = (ROWS + OF_SLOT - 1) / OF_SLOT;
  const uint own_row = part / OF_SLOT % ROWS;
  const uint own_turn = ROWS == 1 ? 0 : part % OF_SLOT;
  const uint own_key = (own_turn * TOGETHER + part / OF_SLOT / ROWS) * simds + simd;
  const KeySpan span = visible_keys(params, (top + min(own_row, rows - 1)) / params.group);
  feature_t<T, BITS> features[PART]; // zeros where a row has none
  for (uint i = 0; i < PART; i++) {
    features[i] = feature_t<T, BITS>(0.0f);
  }
  float maximum_of_slot = MASKED_SCORE;
  float weight_of_slot = 0.0f;

  // In each step, each SIMD group processes ATTENTION_TILE keys, with a stride of `simds` keys.
  for (uint base = first; base < end; base += simds * ATTENTION_TILE) {
    if (!HELD) {
      simdgroup_barrier(mem_flags::mem_threadgroup); // else queries would stay in registers
    }
    const uint start = base + simd;
    float scores[KEPT];
    for (uint i = 0; i < KEPT; i++) {
      scores[i] = 0.0f;
    }
#pragma clang loop unroll_count(UNROLLED)
    for (uint x = 0; x < ROWS; x++) {
      float dots[ATTENTION_TILE];
      for (uint y = 0; y < TOGETHER; y++) {
        for (uint r = 0; r < ROWS; r++) {
          dots[y * ROWS + r] = 0.0f;
        }
        if (start + (x * TOGETHER + y) * simds < end) {
          load_part<T, BITS, PART>(features, keys, params.k, params, part, params.dim, simds);
          for (uint r = 0; r < ROWS; r++) {
            thread float& dot = dots[y * ROWS + r];
            for (uint j = 0; j < PART; j += HELD ? 1 : READS) {
              if (HELD) {
                dot = fma(query[r * PART + j], float(features[j]), dot);
                continue;
              }
              const float4 quad =
                  *(const threadgroup float4*)(scratch + (r * SIMD_WIDTH + part) * PART + j);
              for (uint i = 0; i < READS; i++) {
                dot = fma(quad[i], float(features[j + i]), dot);
              }
            }
          }
        }
      }
      const float score = sum_of_slot(dots, lane);
      const bool own = x % OF_SLOT == own_turn;
      scores[KEPT - 1] = own ? scores[0] : scores[KEPT - 1];
      scores[0] = own ? score : scores[0];
    }
    float grown = maximum_of_slot;
    for (uint i = 0; i < KEPT; i++) {
      const uint key = base + (KEPT - 1 - i) * OF_SLOT * TOGETHER * simds + own_key;
      if (params.soft_cap > 0.0f) {
        scores[i] = capped_score(scores[i], params.soft_cap);
      }
      if (key < end && own_row < rows) {
        if (params.mask_kind != ATTENTION_NO_MASK) {
          const uint row = top + own_row;
          const uint head = kv_head * params.group + row % params.group;
          const long at = mask_of_row(params, batch, head, row / params.group) +
                          long(key) * params.mask.strides[3];
          scores[i] = masked_score<T>(scores[i], mask, params, at);
        }
        scores[i] = seen_score(scores[i], key, span);
      } else {
        scores[i] = -INFINITY;
      }
      grown = larger_score(grown, scores[i]);
    }
    for (uint bit = ATTENTION_TILE / KEPT / 2; bit > 0; bit /= 2) {
      grown = larger_score(grown, simd_shuffle_xor(grown, lanes_apart<ROWS>(bit)));
    }
    const float factor = fast::exp(maximum_of_slot - grown);
    if (simd_any(grown > maximum_of_slot)) {
      for (uint r = 0; r < ROWS; r++) {
        const float of_row = simd_broadcast(factor, ushort(r * OF_SLOT));
        for (uint j = 0; j < PART; j++) {
          sums[r][j] *= of_row;
        }
      }
    }
    maximum_of_slot = grown;
    float total = 0.0f;
    for (uint i = 0; i < KEPT; i++) {
      scores[i] = fast::exp(scores[i] - grown);
      total += scores[i];
    }
    for (uint bit = ATTENTION_TILE / KEPT / 2; bit > 0; bit /= 2) {
      total += simd_shuffle_xor(total, lanes_apart<ROWS>(bit));
    }
    weight_of_slot = fma(weight_of_slot, factor, total);
    float next = scores[KEPT - 1];
#pragma clang loop unroll_count(UNROLLED)
    for (uint x = 0; x < ROWS; x++) {
      for (uint y = 0; y < TOGETHER; y++) {
        if (start + (x * TOGETHER + y) * simds < end) {
          load_part<T, BITS, PART>(
              features, values, params.v, params, part, params.value_dim, simds);
          for (uint r = 0; r < ROWS; r++) {
            const float weight = simd_broadcast(next, ushort((y * ROWS + r) * OF_SLOT));
            for (uint j = 0; j < PART; j++) {
              sums[r][j] = fma(weight, float(features[j]), sums[r][j]);
            }
          }
        }
      }
      // Shift the scores by a lane. The first lane of a slot then has the score of the next
      // iteration.
      next = x % OF_SLOT == OF_SLOT - 1 ? scores[0] : simd_shuffle_down(next, ushort(1));
    }
  }
  float maximum[ROWS];
  float weight[ROWS];
  for (uint r = 0; r < ROWS; r++) {
    maximum[r] = simd_broadcast(maximum_of_slot, ushort(r * OF_SLOT));
    weight[r] = simd_broadcast(weight_of_slot, ushort(r * OF_SLOT));
  }

  // Combine the SIMD groups.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup float* stats = scratch;
  // Compilers load the values of two SIMD groups at once, even if the second group does not exist.
  // Two floats of padding keep this load away from memory that another SIMD group writes.
  threadgroup float* slots = stats + 2 * (ROWS * simds + 1);
  for (uint r = 0; r < ROWS; r++) {
    if (r < rows) {
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
      if (row == r) { // an index of constants keeps the sums in registers
        const float factor = fast::exp(maximum[row] - together);
        for (uint j = 0; j < PART; j++) {
          slots[(simd * SIMD_WIDTH + part) * PART + j] = sums[row][j] * factor;
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint head = kv_head * params.group + (top + r) % params.group;
    const size_t row = (size_t(batch) * params.queries + (top + r) / params.group) * heads + head;
    const size_t partial = at.x * all_rows + row;
    if (params.splits > 1 && thread_index == 0) {
      device float* kept = out + params.splits * all_rows * params.value_dim + 2 * partial;
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
    for (uint d = thread_index; d < params.value_dim; d += threads) {
      float sum = 0.0f;
      for (uint s = 0; s < simds; s++) {
        sum += slots[s * SIMD_WIDTH * PART + d];
      }
      if (params.splits > 1) {
        out[partial * params.value_dim + d] = sum;
      } else {
        ((device T*)out)[row * params.value_dim + d] = T(sum * scale / total);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
