#include "layer_norm_rows.h"
#include "residual_norm.h"

/** x + residual, rounded to T as MLX's add does; the result is then normalized. */
template <typename T>
METAL_FUNC packed4<T> added4(const device T* x, const device T* residual, uint at, uint axis) {
  const packed4<T> a = load4(x, at, axis, T(0.0f));
  const packed4<T> b = load4(residual, at, axis, T(0.0f));
#if MLXP_READS == 4
  packed4<T> sum;
  for (uint i = 0; i < READS; i++) {
    sum[i] = T(float(a[i]) + float(b[i]));
  }
  return sum;
#else
  return msl::plus(a, b);
#endif
}

/** Rows of up to SIMD_ROW elements, one for each SIMD group: no barrier. */
template <typename T, bool CENTERED>
[[kernel]] void residual_norm_simd(
    const device T* x [[buffer(0)]],
    const device T* residual [[buffer(1)]],
    const device T* weight [[buffer(2)]],
    const device T* bias [[buffer(3)]],
    device T* sum [[buffer(4)]],
    device T* out [[buffer(5)]],
    constant ResidualNormParams& params [[buffer(6)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const size_t row = size_t(group) * simds + simd;
  if (row >= params.rows) {
    return;
  }
  const size_t start = row * params.axis;
  const Affine<T> affine = {weight, bias, params.weighted, params.biased};
  const SimdRow place = {lane, SIMD_WIDTH};
  packed4<T> values[1] = {added4(x + start, residual + start, lane * READS, params.axis)};
  store4(sum + start, lane * READS, params.axis, values[0]);
  normalize_held<T, 1, CENTERED>(values, affine, out + start, params.axis, params.eps, place);
}

/** A row for each threadgroup, QUADS * READS elements for each thread, kept in registers. */
template <typename T, uint QUADS, bool CENTERED>
[[kernel]] void residual_norm_row(
    const device T* x [[buffer(0)]],
    const device T* residual [[buffer(1)]],
    const device T* weight [[buffer(2)]],
    const device T* bias [[buffer(3)]],
    device T* sum [[buffer(4)]],
    device T* out [[buffer(5)]],
    constant ResidualNormParams& params [[buffer(6)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const size_t start = size_t(group) * params.axis;
  const Affine<T> affine = {weight, bias, params.weighted, params.biased};
  const Place place = {thread_index, threads, lane, simd, simds};
  const GroupRow row = {thread_index, threads, scratch, place};
  packed4<T> values[QUADS];
  for (uint q = 0; q < QUADS; q++) {
    const uint at = (q * threads + thread_index) * READS;
    values[q] = added4(x + start, residual + start, at, params.axis);
    store4(sum + start, at, params.axis, values[q]);
  }
  normalize_held<T, QUADS, CENTERED>(values, affine, out + start, params.axis, params.eps, row);
}

/** A row of any length for each threadgroup; its sum is read back. */
template <typename T, bool CENTERED>
[[kernel]] void residual_norm_looped(
    const device T* x [[buffer(0)]],
    const device T* residual [[buffer(1)]],
    const device T* weight [[buffer(2)]],
    const device T* bias [[buffer(3)]],
    device T* sum [[buffer(4)]],
    device T* out [[buffer(5)]],
    constant ResidualNormParams& params [[buffer(6)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const size_t start = size_t(group) * params.axis;
  const Affine<T> affine = {weight, bias, params.weighted, params.biased};
  const Place place = {thread_index, threads, lane, simd, simds};
  const GroupRow row = {thread_index, threads, scratch, place};
  Moments seen = {0.0f, 0.0f, 0.0f};
  for (uint at = thread_index * READS; at < params.axis; at += threads * READS) {
    const packed4<T> values = added4(x + start, residual + start, at, params.axis);
    store4(sum + start, at, params.axis, values);
    if (CENTERED) {
      seen = add_quad<T>(seen, values, at, params.axis);
    } else {
      seen.squares = add_squares<T>(seen.squares, values);
    }
  }
  normalize_again<T, CENTERED>(
      sum + start, seen, affine, out + start, params.axis, params.eps, row);
}

#define RESIDUAL_NORM_KERNELS(KIND, CENTERED, DTYPE, T)                                 \
  MLXP_KERNEL("mlxp_residual_norm_simd_" KIND DTYPE, residual_norm_simd<T, CENTERED>)   \
  MLXP_KERNEL("mlxp_residual_norm_row2_" KIND DTYPE, residual_norm_row<T, 2, CENTERED>) \
  MLXP_KERNEL("mlxp_residual_norm_row4_" KIND DTYPE, residual_norm_row<T, 4, CENTERED>) \
  MLXP_KERNEL("mlxp_residual_norm_looped_" KIND DTYPE, residual_norm_looped<T, CENTERED>)

#define RESIDUAL_RMS_KERNELS(DTYPE, T)           \
  RESIDUAL_NORM_KERNELS("rms_", false, DTYPE, T) \
  MLXP_KERNEL("mlxp_residual_norm_row_rms_" DTYPE, residual_norm_row<T, 1, false>)
#define RESIDUAL_LAYER_KERNELS(DTYPE, T) RESIDUAL_NORM_KERNELS("layer_", true, DTYPE, T)

MLXP_EACH_DTYPE(RESIDUAL_RMS_KERNELS)
MLXP_EACH_DTYPE(RESIDUAL_LAYER_KERNELS)
