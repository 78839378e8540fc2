#include "layer_norm_rows.h"
#include "rms_norm.h"

template <typename T, bool WEIGHTED>
[[kernel]] void rms_norm_simd(
    const device T* x [[buffer(0)]],
    const device T* weight [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant RmsNormParams& params [[buffer(3)]],
    MLXP_SIMD_ROW) {
  const size_t row = size_t(group) * simds + simd;
  if (row >= params.rows) {
    return;
  }
  x += row * params.axis;
  out += row * params.axis;
  const Affine<T> affine = {weight, weight, WEIGHTED, 0};
  normalize<T, false>(Plain<T>{x}, affine, out, params, SimdRow{lane}, Quads<1>());
}

template <typename T, uint QUADS, bool WEIGHTED>
[[kernel]] void rms_norm_row(
    const device T* x [[buffer(0)]],
    const device T* weight [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant RmsNormParams& params [[buffer(3)]],
    MLXP_GROUP_ROW) {
  const GroupRow<QUADS != 0 && !LOADS_EARLY> row = {
      {thread_index, threads, lane, simd, simds}, scratch};
  x += size_t(group) * params.axis;
  out += size_t(group) * params.axis;
  const Affine<T> affine = {weight, weight, WEIGHTED, 0};
  normalize<T, false>(Plain<T>{x}, affine, out, params, row, Quads<QUADS>());
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
  MLXP_KERNEL("mlxp_rms_norm_looped_" DTYPE, rms_norm_row<T, 0, false>)       \
  MLXP_KERNEL("mlxp_rms_norm_looped_weighted_" DTYPE, rms_norm_row<T, 0, true>)

MLXP_EACH_DTYPE(RMS_NORM_KERNELS)
