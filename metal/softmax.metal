#include "softmax.h"
#include "softmax_rows.h"

// Maxima start at the lowest finite number, not at -inf: exp(-inf - max) is then 0, and
// a row of nothing but -inf ends in 0 * (1 / 0), MLX's NaN. Short rows are padded with -inf.

/** Rows of up to SIMD_ROW elements, one for each SIMD group: no barrier. */
template <typename T>
[[kernel]] void softmax_simd(
    const device T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant SoftmaxParams& params [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const size_t row = size_t(group) * simds + simd;
  if (row >= params.rows) {
    return;
  }
  x += row * params.axis;
  out += row * params.axis;
  const uint at = lane * READS;

  float values[READS];
  load_row4(values, x, at, params.axis);
  const float maximum = simd_max(max4(-FLT_MAX, values));
  const float sum = simd_sum(exp4(0.0f, values, maximum));
  store_scaled4(out, at, params.axis, values, 1.0f / sum);
}

/** A row for each threadgroup, QUADS * READS elements for each thread, kept in registers. */
template <typename T, uint QUADS>
[[kernel]] void softmax_row(
    const device T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant SoftmaxParams& params [[buffer(2)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const Place place = {thread_index, threads, lane, simd, simds};
  x += size_t(group) * params.axis;
  out += size_t(group) * params.axis;

  float values[QUADS][READS];
  float maximum = -FLT_MAX;
  for (uint q = 0; q < QUADS; q++) {
    load_row4(values[q], x, (q * threads + thread_index) * READS, params.axis);
    maximum = max4(maximum, values[q]);
  }
  // MLX goes through rows of several quads in a loop, with two barriers in all: so do these.
  if (QUADS == 1) {
    maximum = group_max(maximum, scratch, place);
  } else {
    maximum = group_max_at_once(maximum, scratch, place);
  }

  float sum = 0.0f;
  for (uint q = 0; q < QUADS; q++) {
    sum = exp4(sum, values[q], maximum);
  }
  // Use separate slots, since a slow SIMD group may still be reading the maxima.
  if (QUADS == 1) {
    sum = group_sum(sum, scratch + simds, place);
  } else {
    sum = group_sum_at_once(sum, scratch + simds, place);
  }
  const float factor = 1.0f / sum;
  for (uint q = 0; q < QUADS; q++) {
    store_scaled4(out, (q * threads + thread_index) * READS, params.axis, values[q], factor);
  }
}

/** A row of any length for each threadgroup, read twice: maximum and sum together, then out. */
template <typename T>
[[kernel]] void softmax_looped(
    const device T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant SoftmaxParams& params [[buffer(2)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  x += size_t(group) * params.axis;
  out += size_t(group) * params.axis;

  float values[READS];
  float maximum = -FLT_MAX;
  float sum = 0.0f;
  for (uint at = thread_index * READS; at < params.axis; at += threads * READS) {
    load_row4(values, x, at, params.axis);
    const float grown = max4(maximum, values);
    if (grown > maximum) { // else the factor is exp(0) = 1
      sum *= softmax_exp(maximum - grown);
      maximum = grown;
    }
    sum = exp4(sum, values, maximum);
  }
  const float simd_maximum = simd_max(maximum);
  sum = simd_sum(sum * softmax_exp(maximum - simd_maximum));

  // Both halves of every SIMD group's result cross in one barrier.
  if (lane == 0) {
    scratch[simd] = simd_maximum;
    scratch[simds + simd] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float partial_maximum = lane < simds ? scratch[lane] : -FLT_MAX;
  const float partial_sum = lane < simds ? scratch[simds + lane] : 0.0f;
  maximum = simd_max(partial_maximum);
  const float factor = 1.0f / simd_sum(partial_sum * softmax_exp(partial_maximum - maximum));

  for (uint at = thread_index * READS; at < params.axis; at += threads * READS) {
    load_row4(values, x, at, params.axis);
    exp4(0.0f, values, maximum);
    store_scaled4(out, at, params.axis, values, factor);
  }
}

#define SOFTMAX_KERNELS(DTYPE, T)                            \
  MLXP_KERNEL("mlxp_softmax_simd_" DTYPE, softmax_simd<T>)   \
  MLXP_KERNEL("mlxp_softmax_row_" DTYPE, softmax_row<T, 1>)  \
  MLXP_KERNEL("mlxp_softmax_row2_" DTYPE, softmax_row<T, 2>) \
  MLXP_KERNEL("mlxp_softmax_row4_" DTYPE, softmax_row<T, 4>) \
  MLXP_KERNEL("mlxp_softmax_looped_" DTYPE, softmax_looped<T>)

MLXP_EACH_DTYPE(SOFTMAX_KERNELS)
