#include "attention_common.h"
#include "nvidia/fragments.h"

enum : uint {
  FEW_QUERIES = 8, // rows of a block
  FEW_KEYS = 16,   // that a SIMD group multiplies at a time
  FEW_SPLITS = 4,  // that a thread loads at a time
  FEW_PARTS = 16,  // of the splits, at most
};

/** Returns the lower or the upper elements of two words, in one word. */
METAL_FUNC uint two_of(uint first, uint second, uint upper) {
  return upper != 0 ? first >> 16 | (second & 0xffff0000u) : (first & 0xffffu) | second << 16;
}

/** The two elements of a word, as floats. */
template <typename T>
METAL_FUNC float2 elements_of(uint word) {
  const vec<T, 2> both = as_type<vec<T, 2> >(word);
  return float2(float(both[0]), float(both[1]));
}

/**
 * Computes a block of up to FEW_QUERIES rows of a key-value head with a split of its keys. It
 * multiplies small matrices: the rows with eight keys at a time, then the transposed values with
 * the weights. Each SIMD group processes sixteen keys at a time, and keeps separate maxima and sums
 * until the end. The order of additions in a row does not depend on other rows.
 */
template <typename T, uint DIM>
[[kernel]] void attention_few(
    const device T* q [[buffer(0)]],
    const device T* k [[buffer(1)]],
    const device T* v [[buffer(2)]],
    const device uchar* mask [[buffer(3)]],
    const device T* sinks [[buffer(4)]],
    device float* out [[buffer(5)]],
    constant AttentionParams& params [[buffer(6)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  constexpr uint STEPS = DIM / 32;  // loads of a key by a lane, of eight features
  constexpr uint HALVES = DIM / 64; // loads of a value
  const uint g = lane / 4;
  const uint t = lane % 4;
  const uint kv_head = at.y;
  const uint batch = at.z % params.batch;
  const uint top = at.z / params.batch * FEW_QUERIES;
  const uint rows = min(params.group * params.queries - top, uint(FEW_QUERIES));
  const uint row = top + min(g, rows - 1);
  const uint head = kv_head * params.group + row % params.group;
  const uint query = row / params.group;
  const KeySpan span = visible_keys(params, query);
  const uint first = params.first + at.x * params.chunk;
  const uint end = min(params.end, first + params.chunk);
  const device T* keys = row_of(k, params.k[0], batch, kv_head, 0) + t * 8;
  const device T* values = row_of(v, params.v[0], batch, kv_head, 0) + g * 8;

  uint4 queries[STEPS];
  const device T* own = row_of(q, params.q, batch, head, query) + t * 8;
  for (uint i = 0; i < STEPS; i++) {
    queries[i] = load_once((const device uint*)(own + 32 * i));
  }

  float sums[HALVES * 16]; // of 16 features of two rows, four times in each half
  for (uint i = 0; i < HALVES * 16; i++) {
    sums[i] = 0.0f;
  }
  float maximum = MASKED_SCORE;
  float weight = 0.0f;
  for (uint base = first + simd * FEW_KEYS; base < end; base += simds * FEW_KEYS) {
    uint4 key[2 * STEPS];
    for (uint tile = 0; tile < 2; tile++) {
      const uint index = min(base + tile * 8 + g, end - 1);
      const device T* from = keys + long(index) * params.k[0].strides[2];
      for (uint i = 0; i < STEPS; i++) {
        key[tile * STEPS + i] = load_once((const device uint*)(from + 32 * i));
      }
    }
    uint4 value[HALVES * 4];
    for (uint i = 0; i < 4; i++) {
      const uint index = base + i / 2 * 8 + 2 * t + i % 2;
      const device T* from = values + long(min(index, end - 1)) * params.v[0].strides[2];
      for (uint h = 0; h < HALVES; h++) {
        const uint4 loaded = load_once((const device uint*)(from + 64 * h));
        value[h * 4 + i] = index < end ? loaded : uint4(0);
      }
    }

    float scores[4];
    float grown = maximum;
    for (uint tile = 0; tile < 2; tile++) {
      float products[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      for (uint i = 0; i < STEPS; i++) {
        for (uint j = 0; j < 2; j++) {
          const uint left[4] = {queries[i][2 * j], 0, queries[i][2 * j + 1], 0};
          const uint right[2] = {key[tile * STEPS + i][2 * j], key[tile * STEPS + i][2 * j + 1]};
          multiply_add<T>(products, left, right, lane);
        }
      }
      for (uint i = 0; i < 2; i++) {
        const uint index = base + tile * 8 + 2 * t + i;
        float score = products[i] * params.scale;
        if (params.soft_cap > 0.0f) {
          score = capped_score(score, params.soft_cap);
        }
        if (index < end) {
          if (params.mask_kind != ATTENTION_NO_MASK) {
            const long from = mask_of_row(params, batch, head, query);
            score =
                masked_score<T>(score, mask, params, from + long(index) * params.mask.strides[3]);
          }
          score = seen_score(score, index, span);
        } else {
          score = -INFINITY;
        }
        scores[tile * 2 + i] = score;
        grown = larger_score(grown, score);
      }
    }
    grown = larger_score(grown, simd_shuffle_xor(grown, ushort(1)));
    grown = larger_score(grown, simd_shuffle_xor(grown, ushort(2)));
    const float factor = fast::exp(maximum - grown);
    if (simd_any(grown > maximum)) {
      const float of_rows[2] = {
          simd_shuffle(factor, ushort(t * 8)), simd_shuffle(factor, ushort(t * 8 + 4))};
      for (uint i = 0; i < HALVES * 16; i++) {
        sums[i] *= of_rows[i % 2];
      }
    }
    maximum = grown;

    // Split a weight into two 16-bit elements. Their sum is much closer to the weight than one
    // element.
    float total = 0.0f;
    uint high[2];
    uint low[2];
    for (uint tile = 0; tile < 2; tile++) {
      const float a = fast::exp(scores[tile * 2] - grown);
      const float b = fast::exp(scores[tile * 2 + 1] - grown);
      total += a + b;
      high[tile] = two_elements<T>(a, b);
      const float2 rounded = elements_of<T>(high[tile]);
      low[tile] = two_elements<T>(a - rounded[0], b - rounded[1]);
    }
    total += simd_shuffle_xor(total, ushort(1));
    total += simd_shuffle_xor(total, ushort(2));
    weight = fma(weight, factor, total);
    for (uint h = 0; h < HALVES; h++) {
      const thread uint4* of_half = value + h * 4;
      for (uint n = 0; n < 4; n++) {
        uint left[4];
        for (uint i = 0; i < 4; i++) {
          const uint word = n / 2 + i % 2 * 2;
          left[i] = two_of(of_half[i / 2 * 2][word], of_half[i / 2 * 2 + 1][word], n % 2);
        }
        thread float* to = sums + h * 16 + n * 4;
        multiply_add<T>(to, left, high, lane);
        float rest[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        multiply_add<T>(rest, left, low, lane);
        for (uint i = 0; i < 4; i++) { // an infinite value is infinite with the weight's high part
          to[i] += abs(rest[i]) < INFINITY ? rest[i] : 0.0f;
        }
      }
    }
  }

  // Combine the SIMD groups.
  threadgroup float* stats = scratch;
  threadgroup float* together = stats + 2 * FEW_QUERIES * simds; // of a row: maximum, sum, scale
  threadgroup float* slots = together + 3 * FEW_QUERIES;
  if (t == 0 && g < rows) {
    stats[2 * (g * simds + simd)] = maximum;
    stats[2 * (g * simds + simd) + 1] = weight;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < 2; i++) {
    const uint r = t * 2 + i;
    float largest = MASKED_SCORE;
    for (uint s = 0; s < simds && r < rows; s++) {
      largest = larger_score(largest, stats[2 * (r * simds + s)]);
    }
    const float factor = fast::exp(simd_shuffle(maximum, ushort(r * 4)) - largest);
    for (uint j = i; j < HALVES * 16 && r < rows; j += 2) {
      const uint feature = j / 16 * 64 + g * 8 + j / 4 % 4 + j / 2 % 2 * 4;
      slots[(simd * rows + r) * DIM + feature] = sums[j] * factor;
    }
  }
  const uint heads = params.kv_heads * params.group;
  const size_t all_rows = size_t(params.batch) * heads * params.queries;
  if (thread_index < rows) {
    const uint r = thread_index;
    float largest = MASKED_SCORE;
    for (uint s = 0; s < simds; s++) {
      largest = larger_score(largest, stats[2 * (r * simds + s)]);
    }
    float total = 0.0f;
    for (uint s = 0; s < simds; s++) {
      total += stats[2 * (r * simds + s) + 1] * fast::exp(stats[2 * (r * simds + s)] - largest);
    }
    float scale = 1.0f;
    if (params.splits == 1 && params.has_sinks != 0) {
      const float sink = float(sinks[kv_head * params.group + (top + r) % params.group]);
      const float most = larger_score(largest, sink);
      scale = fast::exp(largest - most);
      total = total * scale + fast::exp(sink - most);
    }
    together[3 * r] = largest;
    together[3 * r + 1] = total;
    together[3 * r + 2] = scale;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index; i < rows * DIM; i += group_size.x) {
    const uint r = i / DIM;
    const uint feature = i % DIM;
    const uint of_row = kv_head * params.group + (top + r) % params.group;
    const size_t place =
        (size_t(batch) * params.queries + (top + r) / params.group) * heads + of_row;
    const size_t partial = at.x * all_rows + place;
    float sum = 0.0f;
    for (uint s = 0; s < simds; s++) {
      sum += slots[(s * rows + r) * DIM + feature];
    }
    if (params.splits == 1) {
      const float scale = together[3 * r + 2];
      ((device T*)out)[place * DIM + feature] = T(sum * scale / together[3 * r + 1]);
      continue;
    }
    out[partial * DIM + feature] = sum;
    if (feature < 2) {
      out[params.splits * all_rows * DIM + 2 * partial + feature] = together[3 * r + feature];
    }
  }
}

/** Loads four features of FEW_SPLITS splits, `step` splits apart; zeros for missing splits. */
METAL_FUNC void load_splits(
    thread float4* values,
    const device float* own,
    size_t pitch,
    uint place,
    uint step,
    constant AttentionParams& params) {
  for (uint i = 0; i < FEW_SPLITS; i++) {
    const uint at = place + i * step;
    values[i] = float4(0.0f);
    if (at >= params.before && at < params.before + params.splits) {
      values[i] = load_floats(own + (at - params.before) * pitch);
    }
  }
}

/**
 * Combines the splits of a row, with one threadgroup for each row. A thread adds four features of
 * every `parts`th split. Skipped splits (`before`) keep their places, so the order of the additions
 * does not depend on the first split.
 */
template <typename T>
[[kernel]] void attention_few_combine(
    const device float* partials [[buffer(0)]],
    const device T* sinks [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant AttentionParams& params [[buffer(3)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint row [[threadgroup_position_in_grid]],
    uint thread_index [[thread_position_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint dim = params.value_dim;
  const uint quads = dim / 4;
  const uint parts = threads / quads;
  const uint part = thread_index / quads;
  const uint quad = thread_index % quads;
  const uint heads = params.kv_heads * params.group;
  const size_t all_rows = size_t(params.batch) * heads * params.queries;
  const size_t pitch = all_rows * dim;
  const device float* stats = partials + params.splits * pitch + 2 * row;
  const device float* own = partials + size_t(row) * dim + 4 * quad;
  const uint end = params.before + params.splits;
  float4 values[FEW_SPLITS]; // loaded while the maximum is found
  load_splits(values, own, pitch, part, parts, params);
  float maximum = MASKED_SCORE;
  for (uint s = lane; s < params.splits; s += SIMD_WIDTH) {
    maximum = larger_score(maximum, stats[2 * s * all_rows]);
  }
  maximum = simd_max(maximum);
  if (params.has_sinks != 0) {
    maximum = larger_score(maximum, float(sinks[row % heads]));
  }
  float weight = 0.0f;
  float4 sums = float4(0.0f);
  for (uint base = part; base < end; base += FEW_SPLITS * parts) {
    for (uint i = 0; i < FEW_SPLITS; i++) {
      const uint at = base + i * parts;
      if (at >= params.before && at < end) {
        const device float* kept = stats + 2 * (at - params.before) * all_rows;
        const float factor = fast::exp(kept[0] - maximum);
        weight = fma(kept[1], factor, weight);
        for (uint j = 0; j < 4; j++) {
          sums[j] = fma(factor, values[i][j], sums[j]);
        }
      }
    }
    load_splits(values, own, pitch, base + FEW_SPLITS * parts, parts, params);
  }

  threadgroup float* weights = scratch;
  threadgroup float* slots = weights + FEW_PARTS;
  if (quad == 0) {
    weights[part] = weight;
  }
  *(threadgroup float4*)(slots + part * dim + quad * 4) = sums;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint feature = thread_index; feature < dim; feature += threads) {
    float sum = 0.0f;
    float total = params.has_sinks != 0 ? fast::exp(float(sinks[row % heads]) - maximum) : 0.0f;
    for (uint p = 0; p < parts; p++) {
      sum += slots[p * dim + feature];
      total += weights[p];
    }
    out[size_t(row) * dim + feature] = T(sum / total);
  }
}

#define ATTENTION_FEW(DTYPE, T)                                       \
  MLXP_KERNEL("mlxp_attention_few_64_" DTYPE, attention_few<T, 64>)   \
  MLXP_KERNEL("mlxp_attention_few_128_" DTYPE, attention_few<T, 128>) \
  MLXP_KERNEL("mlxp_attention_few_256_" DTYPE, attention_few<T, 256>) \
  MLXP_KERNEL("mlxp_attention_few_combine_" DTYPE, attention_few_combine<T>)

ATTENTION_FEW("float16", half)
ATTENTION_FEW("bfloat16", bfloat)
