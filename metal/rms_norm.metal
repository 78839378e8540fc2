#include "common.h"
#include "rms_norm.h"
#include "rms_norm_sums.h"

/** As in MLX, the normalized x is rounded to T before the weight multiplies it. */
template <typename T, bool WEIGHTED>
METAL_FUNC packed4<T> scaled(packed4<T> x, packed4<T> weight, float inverse) {
#if MLXP_READS == 4
  packed4<T> y;
  for (uint i = 0; i < READS; i++) {
    T normalized = T(float(x[i]) * inverse);
    y[i] = WEIGHTED ? T(float(weight[i]) * float(normalized)) : normalized;
  }
  return y;
#else
  float values[READS];
  for (uint i = 0; i < READS; i++) {
    values[i] = float(x[i]) * inverse;
  }
  const packed4<T> normalized = msl::rounded<T>(values);
  return WEIGHTED ? msl::times(weight, normalized) : normalized;
#endif
}

/** Rows of up to SIMD_ROW elements, one for each SIMD group: no barrier. */
template <typename T, bool WEIGHTED>
[[kernel]] void rms_norm_simd(
    const device T* x [[buffer(0)]],
    const device T* weight [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant RmsNormParams& params [[buffer(3)]],
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

  packed4<T> values = load4(x, at, params.axis, T(0.0f));
  packed4<T> weights = values;
  if (WEIGHTED) {
    weights = load4(weight, at, params.axis, T(0.0f));
  }
  const float sum = simd_sum(add_squares<T>(0.0f, values));
  const float inverse = inverse_root(sum, params.axis, params.eps);
  store4(out, at, params.axis, scaled<T, WEIGHTED>(values, weights, inverse));
}

/**
 * A row for each threadgroup, QUADS * READS elements for each thread, kept in registers.
 * A thread's quads are a whole threadgroup apart: MLX's order of addition.
 */
template <typename T, uint QUADS, bool WEIGHTED>
[[kernel]] void rms_norm_row(
    const device T* x [[buffer(0)]],
    const device T* weight [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant RmsNormParams& params [[buffer(3)]],
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

  packed4<T> values[QUADS];
  packed4<T> weights[QUADS];
  float sum = 0.0f;
  for (uint q = 0; q < QUADS; q++) {
    const uint at = (q * threads + thread_index) * READS;
    values[q] = load4(x, at, params.axis, T(0.0f));
    weights[q] = values[q];
    if (WEIGHTED && LOADS_EARLY) {
      weights[q] = load4(weight, at, params.axis, T(0.0f));
    }
    sum = add_squares<T>(sum, values[q]);
  }
  sum = LOADS_EARLY ? group_sum(sum, scratch, place) : group_sum_at_once(sum, scratch, place);
  const float inverse = inverse_root(sum, params.axis, params.eps);
  for (uint q = 0; q < QUADS; q++) {
    const uint at = (q * threads + thread_index) * READS;
    keep_packed<T>(values[q]);
    if (WEIGHTED && !LOADS_EARLY) {
      weights[q] = load4(weight, at, params.axis, T(0.0f));
    }
    store4(out, at, params.axis, scaled<T, WEIGHTED>(values[q], weights[q], inverse));
  }
}

/** A row of any length for each threadgroup, read twice. */
template <typename T, bool WEIGHTED>
[[kernel]] void rms_norm_looped(
    const device T* x [[buffer(0)]],
    const device T* weight [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant RmsNormParams& params [[buffer(3)]],
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

  float sum = 0.0f;
  for (uint at = thread_index * READS; at < params.axis; at += threads * READS) {
    sum = add_squares<T>(sum, load4(x, at, params.axis, T(0.0f)));
  }
  sum = group_sum(sum, scratch, place);
  const float inverse = inverse_root(sum, params.axis, params.eps);
  for (uint at = thread_index * READS; at < params.axis; at += threads * READS) {
    packed4<T> values = load4(x, at, params.axis, T(0.0f));
    packed4<T> weights = values;
    if (WEIGHTED) {
      weights = load4(weight, at, params.axis, T(0.0f));
    }
    store4(out, at, params.axis, scaled<T, WEIGHTED>(values, weights, inverse));
  }
}

#define RMS_NORM_KERNELS(DTYPE, T)                                            \
  MLXP_KERNEL("mlxp_rms_norm_simd_" DTYPE, rms_norm_simd<T, false>)           \
  MLXP_KERNEL("mlxp_rms_norm_simd_weighted_" DTYPE, rms_norm_simd<T, true>)   \
  MLXP_KERNEL("mlxp_rms_norm_row_" DTYPE, rms_norm_row<T, 1, false>)          \
  MLXP_KERNEL("mlxp_rms_norm_row_weighted_" DTYPE, rms_norm_row<T, 1, true>)  \
  MLXP_KERNEL("mlxp_rms_norm_row2_" DTYPE, rms_norm_row<T, 2, false>)         \
  MLXP_KERNEL("mlxp_rms_norm_row2_weighted_" DTYPE, rms_norm_row<T, 2, true>) \
  MLXP_KERNEL("mlxp_rms_norm_row4_" DTYPE, rms_norm_row<T, 4, false>)         \
  MLXP_KERNEL("mlxp_rms_norm_row4_weighted_" DTYPE, rms_norm_row<T, 4, true>) \
  MLXP_KERNEL("mlxp_rms_norm_looped_" DTYPE, rms_norm_looped<T, false>)       \
  MLXP_KERNEL("mlxp_rms_norm_looped_weighted_" DTYPE, rms_norm_looped<T, true>)

MLXP_EACH_DTYPE(RMS_NORM_KERNELS)
