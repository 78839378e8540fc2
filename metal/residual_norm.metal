#include "layer_norm_rows.h"
#include "residual_norm.h"

/** x + residual, rounded to T as in MLX's add. The sum is stored, and may be read again. */
template <typename T>
struct Added {
  const device T* x;
  const device T* residual;
  device T* sum;

  METAL_FUNC packed4<T> read(uint at, uint axis) const {
    const packed4<T> added =
        plus<T>(load4(x, at, axis, T(0.0f)), load4(residual, at, axis, T(0.0f)));
    store4(sum, at, axis, added);
    return added;
  }
  METAL_FUNC packed4<T> again(uint at, uint axis) const {
    return load4<T>(sum, at, axis, T(0.0f));
  }
};

template <typename T, bool CENTERED>
[[kernel]] void residual_norm_simd(
    const device T* x [[buffer(0)]],
    const device T* residual [[buffer(1)]],
    const device T* weight [[buffer(2)]],
    const device T* bias [[buffer(3)]],
    device T* sum [[buffer(4)]],
    device T* out [[buffer(5)]],
    constant ResidualNormParams& params [[buffer(6)]],
    MLXP_SIMD_ROW) {
  const size_t row = size_t(group) * simds + simd;
  if (row >= params.rows) {
    return;
  }
  const size_t start = row * params.axis;
  const Added<T> source = {x + start, residual + start, sum + start};
  const Affine<T> affine = {weight, bias, params.weighted, params.biased};
  out += start;
  normalize<T, CENTERED>(source, affine, out, params, SimdRow{lane}, Quads<1>());
}

template <typename T, uint QUADS, bool CENTERED>
[[kernel]] void residual_norm_row(
    const device T* x [[buffer(0)]],
    const device T* residual [[buffer(1)]],
    const device T* weight [[buffer(2)]],
    const device T* bias [[buffer(3)]],
    device T* sum [[buffer(4)]],
    device T* out [[buffer(5)]],
    constant ResidualNormParams& params [[buffer(6)]],
    MLXP_GROUP_ROW) {
  const GroupRow<true> row = {{thread_index, threads, lane, simd, simds}, scratch};
  const size_t start = size_t(group) * params.axis;
  const Added<T> source = {x + start, residual + start, sum + start};
  const Affine<T> affine = {weight, bias, params.weighted, params.biased};
  out += start;
  normalize<T, CENTERED>(source, affine, out, params, row, Quads<QUADS>());
}

#define RESIDUAL_NORM_KERNELS(KIND, CENTERED, DTYPE, T)                                 \
  MLXP_KERNEL("mlxp_residual_norm_simd_" KIND DTYPE, residual_norm_simd<T, CENTERED>)   \
  MLXP_KERNEL("mlxp_residual_norm_row2_" KIND DTYPE, residual_norm_row<T, 2, CENTERED>) \
  MLXP_KERNEL("mlxp_residual_norm_row4_" KIND DTYPE, residual_norm_row<T, 4, CENTERED>) \
  MLXP_KERNEL("mlxp_residual_norm_looped_" KIND DTYPE, residual_norm_row<T, 0, CENTERED>)

#define RESIDUAL_RMS_KERNELS(DTYPE, T)           \
  RESIDUAL_NORM_KERNELS("rms_", false, DTYPE, T) \
  MLXP_KERNEL("mlxp_residual_norm_row_rms_" DTYPE, residual_norm_row<T, 1, false>)
#define RESIDUAL_LAYER_KERNELS(DTYPE, T) RESIDUAL_NORM_KERNELS("layer_", true, DTYPE, T)

MLXP_EACH_DTYPE(RESIDUAL_RMS_KERNELS)
MLXP_EACH_DTYPE(RESIDUAL_LAYER_KERNELS)
