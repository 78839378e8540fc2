#include "common.h"
#include "rope_append.h"
#include "rope_turn.h"

/** The state's row for a head's vector at index `time` of a step, or `rows` if it is not stored. */
METAL_FUNC uint state_row(uint head, uint time, int slot, constant RopeAppendParams& params) {
  if (head < params.heads) {
    return head * params.length + time;
  }
  // Do not compute the sum slot + time, because it may overflow an int.
  if (slot < -int(time) || slot >= int(params.capacity) - int(time)) {
    return params.rows;
  }
  const uint position = uint(slot + int(time));
  return QUERY_POSITIONS * params.heads + (head - params.heads) * params.capacity + position;
}

/**
 * Grid: columns x length x (batch * groups of APPEND_HEADS heads). A thread rotates one pair of
 * features in each of up to APPEND_HEADS heads, which share the angle of the pair. Other threads
 * copy two features past the pairs. The features of values are only copied.
 */
template <typename T, bool INTERLEAVED, bool EXPLICIT>
[[kernel]] void rope_append(
    const device T* before [[buffer(0)]], // the state too: most of it stays
    const device T* qkv [[buffer(1)]],
    const device int* offset [[buffer(2)]],
    const device int* slots [[buffer(3)]],
    const device float* freqs [[buffer(4)]],
    device T* state [[buffer(5)]],
    constant RopeAppendParams& params [[buffer(6)]],
    constant KnownOffset& known [[buffer(7)]],
    uint3 at [[thread_position_in_grid]]) {
  (void)before;
  const uint all_heads = params.heads + 2 * params.kv_heads;
  const uint head_groups = (all_heads - params.first_head + APPEND_HEADS - 1) / APPEND_HEADS;
  const uint batch = at.z / head_groups;
  if (at.x >= params.columns || at.y >= params.length || batch >= params.batch) {
    return;
  }
  const uint first = params.first_head + (at.z - batch * head_groups) * APPEND_HEADS;
  const uint heads = min(uint(APPEND_HEADS), all_heads - first);
  const uint turned = params.heads + params.kv_heads;
  qkv += ((size_t(batch) * params.length + at.y) * all_heads + first) * params.features;
  state += size_t(batch) * params.rows * params.features;
  // The loads of the pairs begin before the load of the offset, which may be in the CPU's memory.
  packed2<T> pairs[APPEND_HEADS];
  if (at.x < params.pairs) {
    for (uint h = 0; h < APPEND_HEADS; h++) {
      if (h < heads) {
        pairs[h] = load_pair<T, INTERLEAVED>(qkv + h * params.features, at.x, params.pairs);
      }
    }
  }
  const int start = known.known ? known.offset : offset[batch * params.offset_stride];
  const int slot = params.slots_follow ? start : slots[batch * params.slot_stride];

  if (at.x >= params.pairs) {
    const uint feature = 2 * at.x;
    for (uint h = 0; h < heads; h++) {
      const uint row = state_row(first + h, at.y, slot, params);
      if (row < params.rows) {
        device T* out = state + size_t(row) * params.features;
        out[feature] = qkv[h * params.features + feature];
        if (feature + 1 < params.features) {
          out[feature + 1] = qkv[h * params.features + feature + 1];
        }
      }
    }
    return;
  }

  Turn by = {1.0f, 0.0f};
  if (first < turned) {
    const float frequency =
        inverse_frequency<EXPLICIT>(freqs, at.x, params.pairs, params.log2_base);
    by = turn(int(at.y) + start, frequency, params.scale, 1.0f);
  }
  for (uint h = 0; h < APPEND_HEADS; h++) {
    const uint row = h < heads ? state_row(first + h, at.y, slot, params) : params.rows;
    if (row < params.rows) {
      packed2<T> pair = pairs[h];
      if (first + h < turned) {
        if (params.multiplier != 1.0f) {
          pair[0] = T(float(pair[0]) * params.multiplier);
          pair[1] = T(float(pair[1]) * params.multiplier);
        }
        pair = rotated<T>(pair, by);
      }
      store_pair<T, INTERLEAVED>(state + size_t(row) * params.features, at.x, params.pairs, pair);
    }
  }
}

/**
 * Computes the derivatives of all heads, with a thread for each pair as in `rope_append`. The
 * gradients of the rows that a step wrote to the state move to `qkv`, and become zeros in `state`.
 */
template <typename T, bool INTERLEAVED, bool EXPLICIT>
[[kernel]] void rope_append_grad(
    const device T* before [[buffer(0)]], // the state too: most of it stays
    const device int* offset [[buffer(1)]],
    const device int* slots [[buffer(2)]],
    const device float* freqs [[buffer(3)]],
    device T* state [[buffer(4)]],
    device T* qkv [[buffer(5)]],
    constant RopeAppendParams& params [[buffer(6)]],
    uint3 at [[thread_position_in_grid]]) {
  (void)before;
  const uint all_heads = params.heads + 2 * params.kv_heads;
  const uint head_groups = (all_heads + APPEND_HEADS - 1) / APPEND_HEADS;
  const uint batch = at.z / head_groups;
  if (at.x >= params.columns || at.y >= params.length || batch >= params.batch) {
    return;
  }
  const uint first = (at.z - batch * head_groups) * APPEND_HEADS;
  const uint end = min(first + APPEND_HEADS, all_heads);
  const int start = offset[batch * params.offset_stride];
  const int slot = params.slots_follow ? start : slots[batch * params.slot_stride];
  qkv += ((size_t(batch) * params.length + at.y) * all_heads + first) * params.features;
  state += size_t(batch) * params.rows * params.features;

  const bool paired = at.x < params.pairs;
  Turn by = {1.0f, 0.0f};
  if (paired && first < params.heads + params.kv_heads) {
    const float frequency =
        inverse_frequency<EXPLICIT>(freqs, at.x, params.pairs, params.log2_base);
    by = turn(int(at.y) + start, frequency, params.scale, -1.0f);
  }
  packed2<T> zeros;
  zeros[0] = T(0.0f);
  zeros[1] = T(0.0f);
  for (uint head = first; head < end; head++, qkv += params.features) {
    const uint place = state_row(head, at.y, slot, params);
    const bool kept = head >= params.first_head && place < params.rows;
    device T* row = state + (kept ? size_t(place) * params.features : 0);
    if (!paired) {
      const uint feature = 2 * at.x;
      for (uint i = feature; i < min(feature + 2, params.features); i++) {
        qkv[i] = kept ? row[i] : T(0.0f);
        if (kept) {
          row[i] = T(0.0f);
        }
      }
      continue;
    }
    packed2<T> pair = zeros;
    if (kept) {
      pair = load_pair<T, INTERLEAVED>(row, at.x, params.pairs);
      if (head < params.heads + params.kv_heads) {
        pair = rotated<T>(pair, by);
        if (params.multiplier != 1.0f) {
          pair[0] = T(float(pair[0]) * params.multiplier);
          pair[1] = T(float(pair[1]) * params.multiplier);
        }
      }
      store_pair<T, INTERLEAVED>(row, at.x, params.pairs, zeros);
    }
    store_pair<T, INTERLEAVED>(qkv, at.x, params.pairs, pair);
  }
}

/** The heads whose features a thread moves, and the angle of its pair. */
struct HeadSpan {
  uint batch;
  uint first;
  uint end; // none beyond the grid
  Turn by;
};

/** The heads and the angle of a thread. The grid is the grid of `rope_append` for all heads. */
template <bool EXPLICIT>
METAL_FUNC HeadSpan span_of_heads(
    uint3 at,
    const device int* offset,
    const device float* freqs,
    constant RopeAppendParams& params,
    float direction) {
  Turn by = {1.0f, 0.0f};
  const uint all_heads = params.heads + 2 * params.kv_heads;
  const uint head_groups = (all_heads + APPEND_HEADS - 1) / APPEND_HEADS;
  const uint batch = at.z / head_groups;
  if (at.x >= params.columns || at.y >= params.length || batch >= params.batch) {
    return {0, 0, 0, by};
  }
  const uint first = (at.z - batch * head_groups) * APPEND_HEADS;
  if (at.x < params.pairs) {
    const float frequency =
        inverse_frequency<EXPLICIT>(freqs, at.x, params.pairs, params.log2_base);
    const int start = offset[batch * params.offset_stride];
    by = turn(int(at.y) + start, frequency, params.scale, direction);
  }
  return {batch, first, min(first + APPEND_HEADS, all_heads), by};
}

/** The address of a head's vector at a position of q, k or v [batch, heads, length, features]. */
template <typename P>
METAL_FUNC P
place_of(P q, P k, P v, uint batch, uint head, uint time, constant RopeAppendParams& params) {
  const uint turned = params.heads + params.kv_heads;
  const uint before = head < params.heads ? 0 : head < turned ? params.heads : turned;
  const uint heads = head < params.heads ? params.heads : params.kv_heads;
  P part = head < params.heads ? q : head < turned ? k : v;
  const size_t row = (size_t(batch) * heads + head - before) * params.length + time;
  return part + row * params.features;
}

/**
 * Moves two features of a head. Scales and rotates them, or only copies them: for values, and past
 * the pairs.
 */
template <typename T, bool INTERLEAVED, bool FORWARD>
METAL_FUNC void move_pair(
    const device T* from,
    device T* to,
    uint column,
    bool turns,
    Turn by,
    constant RopeAppendParams& params) {
  if (column >= params.pairs) {
    for (uint i = 2 * column; i < min(2 * column + 2, params.features); i++) {
      to[i] = from[i];
    }
    return;
  }
  packed2<T> pair = load_pair<T, INTERLEAVED>(from, column, params.pairs);
  if (turns) {
    if (!FORWARD) {
      pair = rotated<T>(pair, by);
    }
    pair[0] = T(float(pair[0]) * params.multiplier);
    pair[1] = T(float(pair[1]) * params.multiplier);
    if (FORWARD) {
      pair = rotated<T>(pair, by);
    }
  }
  store_pair<T, INTERLEAVED>(to, column, params.pairs, pair);
}

/** Splits a step into the heads of queries, keys and values. Queries and keys are rotated. */
template <typename T, bool INTERLEAVED, bool EXPLICIT>
[[kernel]] void rope_heads(
    const device T* qkv [[buffer(0)]],
    const device int* offset [[buffer(1)]],
    const device float* freqs [[buffer(2)]],
    device T* q [[buffer(3)]],
    device T* k [[buffer(4)]],
    device T* v [[buffer(5)]],
    constant RopeAppendParams& params [[buffer(6)]],
    uint3 at [[thread_position_in_grid]]) {
  const HeadSpan span = span_of_heads<EXPLICIT>(at, offset, freqs, params, 1.0f);
  const uint all_heads = params.heads + 2 * params.kv_heads;
  const size_t step = (size_t(span.batch) * params.length + at.y) * all_heads;
  for (uint head = span.first; head < span.end; head++) {
    const bool turns = head < params.heads + params.kv_heads;
    move_pair<T, INTERLEAVED, true>(
        qkv + (step + head) * params.features,
        place_of(q, k, v, span.batch, head, at.y, params),
        at.x,
        turns,
        span.by,
        params);
  }
}

/** The derivative of `rope_heads`, which moves gradients in the opposite direction. */
template <typename T, bool INTERLEAVED, bool EXPLICIT>
[[kernel]] void rope_heads_grad(
    const device T* q [[buffer(0)]],
    const device T* k [[buffer(1)]],
    const device T* v [[buffer(2)]],
    const device int* offset [[buffer(3)]],
    const device float* freqs [[buffer(4)]],
    device T* qkv [[buffer(5)]],
    constant RopeAppendParams& params [[buffer(6)]],
    uint3 at [[thread_position_in_grid]]) {
  const HeadSpan span = span_of_heads<EXPLICIT>(at, offset, freqs, params, -1.0f);
  const uint all_heads = params.heads + 2 * params.kv_heads;
  const size_t step = (size_t(span.batch) * params.length + at.y) * all_heads;
  for (uint head = span.first; head < span.end; head++) {
    const bool turns = head < params.heads + params.kv_heads;
    move_pair<T, INTERLEAVED, false>(
        place_of(q, k, v, span.batch, head, at.y, params),
        qkv + (step + head) * params.features,
        at.x,
        turns,
        span.by,
        params);
  }
}

/** Copies the previous state into a separate buffer, four elements per thread. */
template <typename T>
[[kernel]] void copy_state(
    const device T* from [[buffer(0)]],
    device T* to [[buffer(1)]],
    constant StateCopyParams& params [[buffer(2)]],
    uint2 at [[thread_position_in_grid]]) {
  const ulong count = (ulong(params.count_high) << 32) | ulong(params.count_low);
  const ulong start = (ulong(at.y) * params.row + at.x) * READS;
  if (at.x >= params.row || start >= count) {
    return;
  }
  const uint left = uint(min(count - start, ulong(READS)));
  store4(to + start, 0, left, load4(from + start, 0, left, T(0)));
}

#define APPEND_KERNELS(DTYPE, T)                                                                 \
  MLXP_KERNEL("mlxp_rope_append_half_base_" DTYPE, rope_append<T, false, false>)                 \
  MLXP_KERNEL("mlxp_rope_append_half_freqs_" DTYPE, rope_append<T, false, true>)                 \
  MLXP_KERNEL("mlxp_rope_append_interleaved_base_" DTYPE, rope_append<T, true, false>)           \
  MLXP_KERNEL("mlxp_rope_append_interleaved_freqs_" DTYPE, rope_append<T, true, true>)           \
  MLXP_KERNEL("mlxp_rope_append_grad_half_base_" DTYPE, rope_append_grad<T, false, false>)       \
  MLXP_KERNEL("mlxp_rope_append_grad_half_freqs_" DTYPE, rope_append_grad<T, false, true>)       \
  MLXP_KERNEL("mlxp_rope_append_grad_interleaved_base_" DTYPE, rope_append_grad<T, true, false>) \
  MLXP_KERNEL("mlxp_rope_append_grad_interleaved_freqs_" DTYPE, rope_append_grad<T, true, true>) \
  MLXP_KERNEL("mlxp_rope_append_heads_half_base_" DTYPE, rope_heads<T, false, false>)            \
  MLXP_KERNEL("mlxp_rope_append_heads_half_freqs_" DTYPE, rope_heads<T, false, true>)            \
  MLXP_KERNEL("mlxp_rope_append_heads_interleaved_base_" DTYPE, rope_heads<T, true, false>)      \
  MLXP_KERNEL("mlxp_rope_append_heads_interleaved_freqs_" DTYPE, rope_heads<T, true, true>)      \
  MLXP_KERNEL("mlxp_rope_append_heads_grad_half_base_" DTYPE, rope_heads_grad<T, false, false>)  \
  MLXP_KERNEL("mlxp_rope_append_heads_grad_half_freqs_" DTYPE, rope_heads_grad<T, false, true>)  \
  MLXP_KERNEL(                                                                                   \
      "mlxp_rope_append_heads_grad_interleaved_base_" DTYPE, rope_heads_grad<T, true, false>)    \
  MLXP_KERNEL(                                                                                   \
      "mlxp_rope_append_heads_grad_interleaved_freqs_" DTYPE, rope_heads_grad<T, true, true>)    \
  MLXP_KERNEL("mlxp_rope_append_copy_" DTYPE, copy_state<T>)

MLXP_EACH_DTYPE(APPEND_KERNELS)
