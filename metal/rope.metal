#include "common.h"
#include "rope.h"

/** cos and sin of one (position, pair), the inverse rotation having the opposite sine. */
struct Turn {
  float cosine;
  float sine;
};

METAL_FUNC Turn turn(int position, float inverse_frequency, constant RopeParams& params) {
  const float angle = params.scale * float(position) * inverse_frequency;
  // precise: the fast variants lose accuracy outside [-pi, pi], and angles reach the position
  return {precise::cos(angle), params.direction * precise::sin(angle)};
}

template <typename T>
METAL_FUNC packed2<T> rotated(packed2<T> pair, Turn by) {
  const float a = float(pair[0]);
  const float b = float(pair[1]);
  packed2<T> turned;
  turned[0] = T(a * by.cosine - b * by.sine);
  turned[1] = T(a * by.sine + b * by.cosine);
  return turned;
}

/** Pair `i` of a row: neighbours if interleaved (MLX's "traditional"), else half a row apart. */
template <typename T, bool INTERLEAVED>
METAL_FUNC packed2<T> load_pair(const device T* row, uint i, uint pairs) {
  if (INTERLEAVED) {
    return *(const device packed2<T>*)(row + 2 * i);
  }
  packed2<T> pair;
  pair[0] = row[i];
  pair[1] = row[pairs + i];
  return pair;
}

template <typename T, bool INTERLEAVED>
METAL_FUNC void store_pair(device T* row, uint i, uint pairs, packed2<T> pair) {
  if (INTERLEAVED) {
    *(device packed2<T>*)(row + 2 * i) = pair;
    return;
  }
  row[i] = pair[0];
  row[pairs + i] = pair[1];
}

/**
 * Grid: columns x length x (batch * groups of HEADS heads). A thread owns one pair of
 * up to HEADS heads, which share its angle, or two of the features that are only copied.
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
  const uint batch = at.z / head_groups;
  if (at.x >= params.columns || at.y >= params.length || batch >= params.batch) {
    return;
  }
  const uint head = (at.z - batch * head_groups) * HEADS;
  const uint heads = min(uint(HEADS), params.heads - head);
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

  const float frequency =
      EXPLICIT ? 1.0f / freqs[at.x]
               : precise::exp2(-(float(at.x) / float(params.pairs)) * params.log2_base);
  const Turn by = turn(int(at.y) + offset[batch * params.offset_stride], frequency, params);
  // All loads come before the first store: out may be x, so the compiler cannot reorder them.
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
