#include "masked_softmax.h"
#include "masked_softmax_rows.h"
#include "softmax_rows.h"

// The kernels replace a score that the mask hides by the type's lowest finite number, as in MLX's
// attention. If all scores of a row are hidden, the weights of the row are therefore equal.

template <typename T>
METAL_FUNC float lowest_of();

template <>
METAL_FUNC float lowest_of<float>() {
  return -FLT_MAX;
}

template <>
METAL_FUNC float lowest_of<half>() {
  return -65504.0f;
}

template <>
METAL_FUNC float lowest_of<bfloat>() {
  return -3.38953139e38f;
}

template <typename T>
struct MaskedScores {
  uint begin;
  uint end;
  uint axis;
  const device T* x;
  const device uchar* mask;
  device T* out;
  constant MaskedSoftmaxParams* params;
  MaskedRow row;
  float unseen; // the exponential of a score that is not seen

  /** Loads scores key, ..., key + 3, rounded after each step as in MLX; -inf outside the range. */
  METAL_FUNC void load(thread float* values, uint key) const {
    for (uint i = 0; i < READS; i++) {
      values[i] = -INFINITY;
    }
    if (!row.sees_any4(key)) {
      return;
    }
    const packed4<T> quad = load_seen4(x, row, key, T(-INFINITY));
    for (uint i = 0; i < READS; i++) {
      values[i] = float(T(float(quad[i]) * params->scale));
    }
    if (params->mask_kind == MASK_ADDITIVE) {
      const packed4<T> added = load_mask4((const device T*)mask, *params, row, key, T(0.0f));
      for (uint i = 0; i < READS; i++) {
        values[i] = float(T(values[i] + float(added[i])));
      }
    }
    bool shown[READS];
    load_shown4(shown, mask, *params, row, key);
    for (uint i = 0; i < READS; i++) {
      // Select the padding last: with a negative scale, scaled padding would become +inf.
      const float hidden = row.sees(key + i) ? lowest_of<T>() : -INFINITY;
      values[i] = shown[i] ? values[i] : hidden;
    }
  }

  /** The maximum of the row, with the lowest finite number for each score outside the range. */
  METAL_FUNC float with_unseen(float maximum) const {
    return row.seen() < params->keys ? larger(maximum, lowest_of<T>()) : maximum;
  }
  METAL_FUNC float rescaled(RowStats stats, float maximum) const {
    return stats.sum * softmax_exp(stats.maximum - maximum);
  }
  METAL_FUNC float total(float sum, float maximum) {
    unseen = softmax_exp(lowest_of<T>() - maximum);
    if (row.seen() < params->keys) {
      sum += float(params->keys - row.seen()) * unseen;
    }
    return sum;
  }

  /** Writes the scaled exponentials. Scores outside the range have the exponential `unseen`. */
  METAL_FUNC void store(thread float* values, uint key, float factor) const {
    for (uint i = 0; i < READS; i++) {
      values[i] = row.sees(key + i) ? values[i] : unseen;
    }
    store_scaled4(out, key, params->keys, values, factor);
  }
};

/** `x` and `out` point to the beginning of the row. */
template <typename T>
METAL_FUNC MaskedScores<T> masked_scores(
    const device T* x,
    const device uchar* mask,
    device T* out,
    constant MaskedSoftmaxParams& params,
    uint row) {
  const MaskedRow seen = masked_row(params, row);
  const uint begin = seen.first / READS * READS;
  return {begin, seen.last, params.keys, x, mask, out, &params, seen, 0.0f};
}

template <typename T>
[[kernel]] void masked_softmax_simd(
    const device T* x [[buffer(0)]],
    const device uchar* mask [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant MaskedSoftmaxParams& params [[buffer(3)]],
    MLXP_SIMD_ROW) {
  const size_t row = size_t(group) * simds + simd;
  if (row >= params.rows) {
    return;
  }
  x += row * params.keys;
  out += row * params.keys;
  write_softmax(masked_scores(x, mask, out, params, uint(row)), SimdRow{lane}, Quads<1>());
}

template <typename T, uint QUADS>
[[kernel]] void masked_softmax_row(
    const device T* x [[buffer(0)]],
    const device uchar* mask [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant MaskedSoftmaxParams& params [[buffer(3)]],
    MLXP_GROUP_ROW) {
  const GroupRow<true> row = {{thread_index, threads, lane, simd, simds}, scratch};
  x += size_t(group) * params.keys;
  out += size_t(group) * params.keys;
  write_softmax(masked_scores(x, mask, out, params, group), row, Quads<QUADS>());
}

#define MASKED_SOFTMAX_KERNELS(DTYPE, T)                                   \
  MLXP_KERNEL("mlxp_masked_softmax_simd_" DTYPE, masked_softmax_simd<T>)   \
  MLXP_KERNEL("mlxp_masked_softmax_row_" DTYPE, masked_softmax_row<T, 1>)  \
  MLXP_KERNEL("mlxp_masked_softmax_row2_" DTYPE, masked_softmax_row<T, 2>) \
  MLXP_KERNEL("mlxp_masked_softmax_row4_" DTYPE, masked_softmax_row<T, 4>) \
  MLXP_KERNEL("mlxp_masked_softmax_looped_" DTYPE, masked_softmax_row<T, 0>)

MLXP_EACH_DTYPE(MASKED_SOFTMAX_KERNELS)
