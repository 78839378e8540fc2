#include "common.h"
#include "rope.h"
#include "rope_turn.h"

/**
 * Grid: columns x length x (batch * groups of HEADS heads). A thread rotates one pair of features
 * in each of up to HEADS heads, which share the angle of the pair. Other threads copy two features
 * past the pairs.
 */
template <typename T, uint HEADS, bool INTERLEAVED, bool EXPLICIT>
[[kernel]] void rope(
    const device T* x [[buffer(0)]],
    const device int* offset [[buffer(1)]],
    const device float* freqs [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant RopeParams& params [[buffer(4)]],
    uint3 at [[thread_position_in_grid]]) {
  const uint head_groups = (params.heads + HEADS - 1) / HEADS;
  if (at.x >= params.columns || at.y >= params.length || at.z >= params.batch * head_groups) {
    return;
  }
  // If a thread has one head and all sequences have one offset, `head` counts the heads of all
  // sequences.
  const uint batch = HEADS == 1 && params.offset_stride == 0 ? 0 : at.z / head_groups;
  const uint head = (at.z - batch * head_groups) * HEADS;
  const uint heads = HEADS > 1 ? min(uint(HEADS), params.heads - head) : 1;
  const size_t next_head = size_t(params.length) * params.features;
  const size_t start =
      (size_t(batch) * params.heads + head) * next_head + size_t(at.y) * params.features;
  x += start;
  out += start;

  if (at.x >= params.pairs) {
    const uint feature = 2 * at.x;
    for (uint h = 0; h < heads; h++) {
      out[h * next_head + feature] = x[h * next_head + feature];
      if (feature + 1 < params.features) {
        out[h * next_head + feature + 1] = x[h * next_head + feature + 1];
      }
    }
    return;
  }

  const float frequency = inverse_frequency<EXPLICIT>(freqs, at.x, params.pairs, params.log2_base);
  const int position = int(at.y) + offset[batch * params.offset_stride];
  const Turn by = turn(position, frequency, params.scale, params.direction);
  // All loads come before the first store. `out` may be x, so the compiler must keep the order of
  // loads and stores.
  packed2<T> pairs[HEADS];
  for (uint h = 0; h < HEADS; h++) {
    if (h < heads) {
      pairs[h] = load_pair<T, INTERLEAVED>(x + h * next_head, at.x, params.pairs);
    }
  }
  for (uint h = 0; h < HEADS; h++) {
    if (h < heads) {
      store_pair<T, INTERLEAVED>(out + h * next_head, at.x, params.pairs, rotated<T>(pairs[h], by));
    }
  }
}

#define ROPE_HEAD_KERNELS(DTYPE, T, NAME, HEADS)                                    \
  MLXP_KERNEL("mlxp_rope_half_base" NAME DTYPE, rope<T, HEADS, false, false>)       \
  MLXP_KERNEL("mlxp_rope_half_freqs" NAME DTYPE, rope<T, HEADS, false, true>)       \
  MLXP_KERNEL("mlxp_rope_interleaved_base" NAME DTYPE, rope<T, HEADS, true, false>) \
  MLXP_KERNEL("mlxp_rope_interleaved_freqs" NAME DTYPE, rope<T, HEADS, true, true>)

#define ROPE_KERNELS(DTYPE, T)                 \
  ROPE_HEAD_KERNELS(DTYPE, T, "_one_head_", 1) \
  ROPE_HEAD_KERNELS(DTYPE, T, "_", ROPE_HEADS)

MLXP_EACH_DTYPE(ROPE_KERNELS)
