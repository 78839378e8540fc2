#include "masked_softmax.h"
#include "masked_softmax_rows.h"
#include "softmax_stats.h"

// Hidden scores count as the type's lowest finite number, as in MLX's attention, so a row whose
// scores are all hidden is uniform.

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

/** Scores key, ..., key + 3, rounded after each step as MLX rounds; -inf where not seen. */
template <typename T>
METAL_FUNC void load_scores4(
    thread float* values,
    const device T* x,
    const device uchar* mask,
    constant MaskedSoftmaxParams& params,
    MaskedRow row,
    uint key) {
  for (uint i = 0; i < READS; i++) {
    values[i] = -INFINITY;
  }
  if (!row.sees_any4(key)) {
    return;
  }
  const packed4<T> quad = load_seen4(x, row, key, T(-INFINITY));
  for (uint i = 0; i < READS; i++) {
    values[i] = float(T(float(quad[i]) * params.scale));
  }
  if (params.mask_kind == MASK_ADDITIVE) {
    const packed4<T> added = load_mask4((const device T*)mask, params, row, key, T(0.0f));
    for (uint i = 0; i < READS; i++) {
      values[i] = float(T(values[i] + float(added[i])));
    }
  }
  bool shown[READS];
  load_shown4(shown, mask, params, row, key);
  for (uint i = 0; i < READS; i++) {
    // A negative scale must not turn the pad into +inf.
    const float hidden = row.sees(key + i) ? lowest_of<T>() : -INFINITY;
    values[i] = shown[i] ? values[i] : hidden;
  }
}

/** The maximum including the scores that are not seen, each of which is the lowest number. */
template <typename T>
METAL_FUNC float with_unseen(float maximum, constant MaskedSoftmaxParams& params, MaskedRow row) {
  return row.seen() < params.keys ? larger(maximum, lowest_of<T>()) : maximum;
}

/** Writes the scaled exponentials, with the one of unseen scores where a score is not seen. */
template <typename T>
METAL_FUNC void store_shares4(
    device T* out,
    constant MaskedSoftmaxParams& params,
    MaskedRow row,
    uint key,
    thread float* values,
    float unseen,
    float factor) {
  for (uint i = 0; i < READS; i++) {
    values[i] = row.sees(key + i) ? values[i] : unseen;
  }
  store_scaled4(out, key, params.keys, values, factor);
}

/** Rows of up to SIMD_ROW keys, one for each SIMD group: no barrier. */
template <typename T>
[[kernel]] void masked_softmax_simd(
    const device T* x [[buffer(0)]],
    const device uchar* mask [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant MaskedSoftmaxParams& params [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const size_t index = size_t(group) * simds + simd;
  if (index >= params.rows) {
    return;
  }
  x += index * params.keys;
  out += index * params.keys;
  const MaskedRow row = masked_row(params, uint(index));
  const uint key = lane * READS;

  float values[READS];
  load_scores4(values, x, mask, params, row, key);
  float maximum = simd_max(max4(-FLT_MAX, values));
  maximum = with_unseen<T>(maximum, params, row);
  float sum = simd_sum(exp4(0.0f, values, maximum));
  const float unseen = softmax_exp(lowest_of<T>() - maximum);
  if (row.seen() < params.keys) {
    sum += float(params.keys - row.seen()) * unseen;
  }
  store_shares4(out, params, row, key, values, unseen, 1.0f / sum);
}

/** A row for each threadgroup, QUADS * READS keys for each thread, kept in registers. */
template <typename T, uint QUADS>
[[kernel]] void masked_softmax_row(
    const device T* x [[buffer(0)]],
    const device uchar* mask [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant MaskedSoftmaxParams& params [[buffer(3)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const Place place = {thread_index, threads, lane, simd, simds};
  x += size_t(group) * params.keys;
  out += size_t(group) * params.keys;
  const MaskedRow row = masked_row(params, group);

  float values[QUADS][READS];
  float maximum = -FLT_MAX;
  for (uint q = 0; q < QUADS; q++) {
    const uint key = (q * threads + thread_index) * READS;
    load_scores4(values[q], x, mask, params, row, key);
    maximum = max4(maximum, values[q]);
  }
  maximum = with_unseen<T>(group_max_at_once(maximum, scratch, place), params, row);

  float sum = 0.0f;
  for (uint q = 0; q < QUADS; q++) {
    sum = exp4(sum, values[q], maximum);
  }
  // Use separate slots, since a slow SIMD group may still be reading the maxima.
  sum = group_sum_at_once(sum, scratch + simds, place);
  const float unseen = softmax_exp(lowest_of<T>() - maximum);
  if (row.seen() < params.keys) {
    sum += float(params.keys - row.seen()) * unseen;
  }
  const float factor = 1.0f / sum;
  for (uint q = 0; q < QUADS; q++) {
    const uint key = (q * threads + thread_index) * READS;
    store_shares4(out, params, row, key, values[q], unseen, factor);
  }
}

/** A row of any length for each threadgroup; the scores that are seen are read twice. */
template <typename T>
[[kernel]] void masked_softmax_looped(
    const device T* x [[buffer(0)]],
    const device uchar* mask [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant MaskedSoftmaxParams& params [[buffer(3)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const Place place = {thread_index, threads, lane, simd, simds};
  x += size_t(group) * params.keys;
  out += size_t(group) * params.keys;
  const MaskedRow row = masked_row(params, group);

  float values[READS];
  RowStats stats = no_stats();
  const uint first = row.first / READS + thread_index;
  for (uint key = first * READS; key < row.last; key += threads * READS) {
    load_scores4(values, x, mask, params, row, key);
    stats = with4(stats, values);
  }
  stats = group_stats(stats, scratch, place);
  const float maximum = with_unseen<T>(stats.maximum, params, row);
  float sum = stats.sum * softmax_exp(stats.maximum - maximum);
  const float unseen = softmax_exp(lowest_of<T>() - maximum);
  if (row.seen() < params.keys) {
    sum += float(params.keys - row.seen()) * unseen;
  }
  const float factor = 1.0f / sum;

  for (uint key = thread_index * READS; key < params.keys; key += threads * READS) {
    load_scores4(values, x, mask, params, row, key);
    exp4(0.0f, values, maximum);
    store_shares4(out, params, row, key, values, unseen, factor);
  }
}

#define MASKED_SOFTMAX_KERNELS(DTYPE, T)                                   \
  MLXP_KERNEL("mlxp_masked_softmax_simd_" DTYPE, masked_softmax_simd<T>)   \
  MLXP_KERNEL("mlxp_masked_softmax_row_" DTYPE, masked_softmax_row<T, 1>)  \
  MLXP_KERNEL("mlxp_masked_softmax_row2_" DTYPE, masked_softmax_row<T, 2>) \
  MLXP_KERNEL("mlxp_masked_softmax_row4_" DTYPE, masked_softmax_row<T, 4>) \
  MLXP_KERNEL("mlxp_masked_softmax_looped_" DTYPE, masked_softmax_looped<T>)

MLXP_EACH_DTYPE(MASKED_SOFTMAX_KERNELS)
