#include "masked_softmax.h"
#include "masked_softmax_rows.h"

// The gradient of the scores, which is zero for hidden scores even if their softmax is not.

/** Four products y * g, and their factors; zero where a score is not seen. */
template <typename T>
METAL_FUNC float load_products4(
    thread float* y,
    thread float* g,
    const device T* y_row,
    const device T* g_row,
    MaskedRow row,
    uint key) {
  float sum = 0.0f;
  for (uint i = 0; i < READS; i++) {
    y[i] = 0.0f;
    g[i] = 0.0f;
  }
  if (row.sees_any4(key)) {
    const packed4<T> y4 = load_seen4(y_row, row, key, T(0.0f));
    const packed4<T> g4 = load_seen4(g_row, row, key, T(0.0f));
    for (uint i = 0; i < READS; i++) {
      y[i] = float(y4[i]);
      g[i] = float(g4[i]);
      sum += y[i] * g[i];
    }
  }
  return sum;
}

/** scale * y * (g - along), and zero where a score was hidden. */
template <typename T>
METAL_FUNC void store_gradients4(
    device T* out,
    const device uchar* mask,
    constant MaskedSoftmaxParams& params,
    MaskedRow row,
    uint key,
    const thread float* y,
    const thread float* g,
    float along) {
  bool shown[READS];
  load_shown4(shown, mask, params, row, key);
  float values[READS];
  for (uint i = 0; i < READS; i++) {
    values[i] = shown[i] ? y[i] * (g[i] - along) : 0.0f;
  }
  packed4<T> quad;
  for (uint i = 0; i < READS; i++) {
    quad[i] = T(values[i] * params.scale);
  }
  store4(out, key, params.keys, quad);
}

template <typename T>
[[kernel]] void masked_softmax_grad_simd(
    const device T* y [[buffer(0)]],
    const device T* g [[buffer(1)]],
    const device uchar* mask [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant MaskedSoftmaxParams& params [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const size_t index = size_t(group) * simds + simd;
  if (index >= params.rows) {
    return;
  }
  const size_t offset = index * params.keys;
  const MaskedRow row = masked_row(params, uint(index));
  const uint key = lane * READS;

  float ys[READS];
  float gs[READS];
  const float along = simd_sum(load_products4(ys, gs, y + offset, g + offset, row, key));
  store_gradients4(out + offset, mask, params, row, key, ys, gs, along);
}

template <typename T, uint QUADS>
[[kernel]] void masked_softmax_grad_row(
    const device T* y [[buffer(0)]],
    const device T* g [[buffer(1)]],
    const device uchar* mask [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant MaskedSoftmaxParams& params [[buffer(4)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const Place place = {thread_index, threads, lane, simd, simds};
  const size_t offset = size_t(group) * params.keys;
  const MaskedRow row = masked_row(params, group);

  float ys[QUADS][READS];
  float gs[QUADS][READS];
  float sum = 0.0f;
  for (uint q = 0; q < QUADS; q++) {
    const uint key = (q * threads + thread_index) * READS;
    sum += load_products4(ys[q], gs[q], y + offset, g + offset, row, key);
  }
  const float along = group_sum_at_once(sum, scratch, place);
  for (uint q = 0; q < QUADS; q++) {
    const uint key = (q * threads + thread_index) * READS;
    store_gradients4(out + offset, mask, params, row, key, ys[q], gs[q], along);
  }
}

/** The elements that are seen are read twice. */
template <typename T>
[[kernel]] void masked_softmax_grad_looped(
    const device T* y [[buffer(0)]],
    const device T* g [[buffer(1)]],
    const device uchar* mask [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant MaskedSoftmaxParams& params [[buffer(4)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const Place place = {thread_index, threads, lane, simd, simds};
  const size_t offset = size_t(group) * params.keys;
  const MaskedRow row = masked_row(params, group);

  float ys[READS];
  float gs[READS];
  float sum = 0.0f;
  const uint first = row.first / READS + thread_index;
  for (uint key = first * READS; key < row.last; key += threads * READS) {
    sum += load_products4(ys, gs, y + offset, g + offset, row, key);
  }
  const float along = group_sum_at_once(sum, scratch, place);
  for (uint key = thread_index * READS; key < params.keys; key += threads * READS) {
    load_products4(ys, gs, y + offset, g + offset, row, key);
    store_gradients4(out + offset, mask, params, row, key, ys, gs, along);
  }
}

#define MASKED_SOFTMAX_GRAD_KERNELS(DTYPE, T)                                        \
  MLXP_KERNEL("mlxp_masked_softmax_grad_simd_" DTYPE, masked_softmax_grad_simd<T>)   \
  MLXP_KERNEL("mlxp_masked_softmax_grad_row_" DTYPE, masked_softmax_grad_row<T, 1>)  \
  MLXP_KERNEL("mlxp_masked_softmax_grad_row2_" DTYPE, masked_softmax_grad_row<T, 2>) \
  MLXP_KERNEL("mlxp_masked_softmax_grad_row4_" DTYPE, masked_softmax_grad_row<T, 4>) \
  MLXP_KERNEL("mlxp_masked_softmax_grad_looped_" DTYPE, masked_softmax_grad_looped<T>)

MLXP_EACH_DTYPE(MASKED_SOFTMAX_GRAD_KERNELS)
