#include "layer_norm.h"
#include "layer_norm_rows.h"

/** Rows of up to SIMD_ROW elements, one for each SIMD group: no barrier. */
template <typename T>
[[kernel]] void layer_norm_simd(
    const device T* x [[buffer(0)]],
    const device T* weight [[buffer(1)]],
    const device T* bias [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant LayerNormParams& params [[buffer(4)]],
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
  const Affine<T> affine = {weight, bias, params.weighted, params.biased};
  const SimdRow place = {lane, SIMD_WIDTH};
  packed4<T> values[1] = {load4(x, lane * READS, params.axis, T(0.0f))};
  normalize_held<T, 1, true>(values, affine, out, params.axis, params.eps, place);
}

/** A row for each threadgroup, QUADS * READS elements for each thread, kept in registers. */
template <typename T, uint QUADS>
[[kernel]] void layer_norm_row(
    const device T* x [[buffer(0)]],
    const device T* weight [[buffer(1)]],
    const device T* bias [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant LayerNormParams& params [[buffer(4)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  x += size_t(group) * params.axis;
  out += size_t(group) * params.axis;
  const Affine<T> affine = {weight, bias, params.weighted, params.biased};
  const Place place = {thread_index, threads, lane, simd, simds};
  const GroupRow row = {thread_index, threads, scratch, place};
  packed4<T> values[QUADS];
  for (uint q = 0; q < QUADS; q++) {
    values[q] = load4(x, (q * threads + thread_index) * READS, params.axis, T(0.0f));
  }
  normalize_held<T, QUADS, true>(values, affine, out, params.axis, params.eps, row);
}

/** A row of any length for each threadgroup, read twice. */
template <typename T>
[[kernel]] void layer_norm_looped(
    const device T* x [[buffer(0)]],
    const device T* weight [[buffer(1)]],
    const device T* bias [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant LayerNormParams& params [[buffer(4)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  x += size_t(group) * params.axis;
  out += size_t(group) * params.axis;
  const Affine<T> affine = {weight, bias, params.weighted, params.biased};
  const Place place = {thread_index, threads, lane, simd, simds};
  const GroupRow row = {thread_index, threads, scratch, place};
  Moments seen = {0.0f, 0.0f, 0.0f};
  for (uint at = thread_index * READS; at < params.axis; at += threads * READS) {
    seen = add_quad<T>(seen, load4(x, at, params.axis, T(0.0f)), at, params.axis);
  }
  normalize_again<T, true>(x, seen, affine, out, params.axis, params.eps, row);
}

#define LAYER_NORM_KERNELS(DTYPE, T)                               \
  MLXP_KERNEL("mlxp_layer_norm_simd_" DTYPE, layer_norm_simd<T>)   \
  MLXP_KERNEL("mlxp_layer_norm_row2_" DTYPE, layer_norm_row<T, 2>) \
  MLXP_KERNEL("mlxp_layer_norm_row4_" DTYPE, layer_norm_row<T, 4>) \
  MLXP_KERNEL("mlxp_layer_norm_looped_" DTYPE, layer_norm_looped<T>)

MLXP_EACH_DTYPE(LAYER_NORM_KERNELS)
