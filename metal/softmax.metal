#include "softmax.h"
#include "softmax_rows.h"

template <typename T>
struct Scores {
  uint begin;
  uint end;
  uint axis;
  const device T* x;
  device T* out;

  METAL_FUNC void load(thread float* values, uint at) const {
    load_row4(values, x, at, axis);
  }
  METAL_FUNC float with_unseen(float maximum) const {
    return maximum;
  }
  METAL_FUNC float rescaled(RowStats stats, float) const {
    return stats.sum;
  }
  METAL_FUNC float total(float sum, float) const {
    return sum;
  }
  METAL_FUNC void store(const thread float* values, uint at, float factor) const {
    store_scaled4(out, at, axis, values, factor);
  }
};

template <typename T>
[[kernel]] void softmax_simd(
    const device T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant SoftmaxParams& params [[buffer(2)]],
    MLXP_SIMD_ROW) {
  const size_t row = size_t(group) * simds + simd;
  if (row >= params.rows) {
    return;
  }
  x += row * params.axis;
  out += row * params.axis;
  const Scores<T> scores = {0, params.axis, params.axis, x, out};
  write_softmax(scores, SimdRow{lane}, Quads<1>());
}

/** The maximum and the sum take two barriers each if a thread has one quad, and one each if it has
 * several. With QUADS = 0, which allows any number of quads, both take one barrier together. */
template <typename T, uint QUADS>
[[kernel]] void softmax_row(
    const device T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant SoftmaxParams& params [[buffer(2)]],
    MLXP_GROUP_ROW) {
  const GroupRow<QUADS != 1> row = {{thread_index, threads, lane, simd, simds}, scratch};
  x += size_t(group) * params.axis;
  out += size_t(group) * params.axis;
  const Scores<T> scores = {0, params.axis, params.axis, x, out};
  write_softmax(scores, row, Quads<QUADS>());
}

#define SOFTMAX_KERNELS(DTYPE, T)                            \
  MLXP_KERNEL("mlxp_softmax_simd_" DTYPE, softmax_simd<T>)   \
  MLXP_KERNEL("mlxp_softmax_row_" DTYPE, softmax_row<T, 1>)  \
  MLXP_KERNEL("mlxp_softmax_row2_" DTYPE, softmax_row<T, 2>) \
  MLXP_KERNEL("mlxp_softmax_row4_" DTYPE, softmax_row<T, 4>) \
  MLXP_KERNEL("mlxp_softmax_looped_" DTYPE, softmax_row<T, 0>)

MLXP_EACH_DTYPE(SOFTMAX_KERNELS)
