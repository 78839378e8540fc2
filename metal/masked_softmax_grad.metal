#include "masked_softmax.h"
#include "masked_softmax_rows.h"

// The gradient with respect to the scores. It is zero for a hidden score, even if its softmax is
// not zero.

template <typename T>
struct MaskedGradient {
  const device T* y_row;
  const device T* g_row;
  const device uchar* mask;
  device T* out;
  constant MaskedSoftmaxParams* params;
  MaskedRow row;

  /** Loads y and g, zeros outside the range, and returns the sum of their four products. */
  METAL_FUNC float load(thread float* y, thread float* g, uint key) const {
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

  /** Writes scale * y * (g - along). For a score that was hidden, writes zero. */
  METAL_FUNC void store(const thread float* y, const thread float* g, uint key, float along) const {
    bool shown[READS];
    load_shown4(shown, mask, *params, row, key);
    float values[READS];
    for (uint i = 0; i < READS; i++) {
      values[i] = shown[i] ? y[i] * (g[i] - along) : 0.0f;
    }
    packed4<T> quad;
    for (uint i = 0; i < READS; i++) {
      quad[i] = T(values[i] * params->scale);
    }
    store4(out, key, params->keys, quad);
  }
};

template <typename T, typename Row, uint QUADS>
METAL_FUNC void write_gradient(MaskedGradient<T> of, Row row, Quads<QUADS>) {
  float y[QUADS][READS];
  float g[QUADS][READS];
  float sum = 0.0f;
  for (uint q = 0; q < QUADS; q++) {
    sum += of.load(y[q], g[q], row.at(q));
  }
  const float along = row.sum(sum, 0);
  for (uint q = 0; q < QUADS; q++) {
    of.store(y[q], g[q], row.at(q), along);
  }
}

/** Reads the elements in the row's range twice. */
template <typename T, typename Row>
METAL_FUNC void write_gradient(MaskedGradient<T> of, Row row, Quads<0>) {
  float y[READS];
  float g[READS];
  float sum = 0.0f;
  const uint first = of.row.first / READS * READS + row.at(0);
  for (uint key = first; key < of.row.last; key += row.stride()) {
    sum += of.load(y, g, key);
  }
  const float along = row.sum(sum, 0);
  for (uint key = row.at(0); key < of.params->keys; key += row.stride()) {
    of.load(y, g, key);
    of.store(y, g, key, along);
  }
}

template <typename T>
[[kernel]] void masked_softmax_grad_simd(
    const device T* y [[buffer(0)]],
    const device T* g [[buffer(1)]],
    const device uchar* mask [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant MaskedSoftmaxParams& params [[buffer(4)]],
    MLXP_SIMD_ROW) {
  const size_t row = size_t(group) * simds + simd;
  if (row >= params.rows) {
    return;
  }
  const size_t start = row * params.keys;
  const MaskedRow seen = masked_row(params, uint(row));
  const MaskedGradient<T> of = {y + start, g + start, mask, out + start, &params, seen};
  write_gradient(of, SimdRow{lane}, Quads<1>());
}

template <typename T, uint QUADS>
[[kernel]] void masked_softmax_grad_row(
    const device T* y [[buffer(0)]],
    const device T* g [[buffer(1)]],
    const device uchar* mask [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant MaskedSoftmaxParams& params [[buffer(4)]],
    MLXP_GROUP_ROW) {
  const GroupRow<true> row = {{thread_index, threads, lane, simd, simds}, scratch};
  const size_t start = size_t(group) * params.keys;
  const MaskedRow seen = masked_row(params, group);
  const MaskedGradient<T> of = {y + start, g + start, mask, out + start, &params, seen};
  write_gradient(of, row, Quads<QUADS>());
}

#define MASKED_SOFTMAX_GRAD_KERNELS(DTYPE, T)                                        \
  MLXP_KERNEL("mlxp_masked_softmax_grad_simd_" DTYPE, masked_softmax_grad_simd<T>)   \
  MLXP_KERNEL("mlxp_masked_softmax_grad_row_" DTYPE, masked_softmax_grad_row<T, 1>)  \
  MLXP_KERNEL("mlxp_masked_softmax_grad_row2_" DTYPE, masked_softmax_grad_row<T, 2>) \
  MLXP_KERNEL("mlxp_masked_softmax_grad_row4_" DTYPE, masked_softmax_grad_row<T, 4>) \
  MLXP_KERNEL("mlxp_masked_softmax_grad_looped_" DTYPE, masked_softmax_grad_row<T, 0>)

MLXP_EACH_DTYPE(MASKED_SOFTMAX_GRAD_KERNELS)
