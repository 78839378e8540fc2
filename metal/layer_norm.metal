#include "layer_norm.h"
#include "layer_norm_rows.h"

template <typename T>
[[kernel]] void layer_norm_simd(
    const device T* x [[buffer(0)]],
    const device T* weight [[buffer(1)]],
    const device T* bias [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant LayerNormParams& params [[buffer(4)]],
    MLXP_SIMD_ROW) {
  const size_t row = size_t(group) * simds + simd;
  if (row >= params.rows) {
    return;
  }
  x += row * params.axis;
  out += row * params.axis;
  const Affine<T> affine = {weight, bias, params.weighted, params.biased};
  normalize<T, true>(Plain<T>{x}, affine, out, params, SimdRow{lane}, Quads<1>());
}

template <typename T, uint QUADS>
[[kernel]] void layer_norm_row(
    const device T* x [[buffer(0)]],
    const device T* weight [[buffer(1)]],
    const device T* bias [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant LayerNormParams& params [[buffer(4)]],
    MLXP_GROUP_ROW) {
  const GroupRow<true> row = {{thread_index, threads, lane, simd, simds}, scratch};
  x += size_t(group) * params.axis;
  out += size_t(group) * params.axis;
  const Affine<T> affine = {weight, bias, params.weighted, params.biased};
  normalize<T, true>(Plain<T>{x}, affine, out, params, row, Quads<QUADS>());
}

#define LAYER_NORM_KERNELS(DTYPE, T)                               \
  MLXP_KERNEL("mlxp_layer_norm_simd_" DTYPE, layer_norm_simd<T>)   \
  MLXP_KERNEL("mlxp_layer_norm_row2_" DTYPE, layer_norm_row<T, 2>) \
  MLXP_KERNEL("mlxp_layer_norm_row4_" DTYPE, layer_norm_row<T, 4>) \
  MLXP_KERNEL("mlxp_layer_norm_looped_" DTYPE, layer_norm_row<T, 0>)

MLXP_EACH_DTYPE(LAYER_NORM_KERNELS)
