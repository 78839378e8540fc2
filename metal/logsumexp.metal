#include "logsumexp.h"
#include "softmax_rows.h"

// The maximum starts at the lowest finite number, so that a row with only -inf gives log(0). With
// SUBTRACT the kernels compute log-softmax: they subtract the logarithm, rounded as in MLX, from
// the row.

METAL_FUNC float log_of(RowStats stats) {
  return isinf(stats.maximum) ? stats.maximum : precise::log(stats.sum) + stats.maximum;
}

template <typename T>
METAL_FUNC void store_less4(
    device T* row, uint at, uint axis, const thread float* values, float less) {
  packed4<T> quad;
  for (uint i = 0; i < READS; i++) {
    quad[i] = T(values[i] - less);
  }
  store4(row, at, axis, quad);
}

/** The number to subtract in exponentials: the maximum of the row, or of the thread. */
METAL_FUNC float reference(float maximum, SimdRow row) {
  return row.maximum(maximum);
}
METAL_FUNC float reference(float maximum, GroupRow<true>) {
  return maximum;
}
METAL_FUNC RowStats combined(RowStats stats, SimdRow row) {
  return {stats.maximum, row.sum(stats.sum, 0)};
}
METAL_FUNC RowStats combined(RowStats stats, GroupRow<true> row) {
  return group_stats(stats, row.slots, row.place);
}

template <bool SUBTRACT, typename T, typename Row, uint QUADS>
METAL_FUNC void write_log(const device T* x, device T* out, uint axis, Row row, Quads<QUADS>) {
  float values[QUADS][READS];
  RowStats stats = no_stats();
  for (uint q = 0; q < QUADS; q++) {
    load_row4(values[q], x, row.at(q), axis);
    stats.maximum = max4(stats.maximum, values[q]);
  }
  stats.maximum = reference(stats.maximum, row);
  for (uint q = 0; q < QUADS; q++) {
    for (uint i = 0; i < READS; i++) {
      stats.sum += softmax_exp(values[q][i] - stats.maximum);
    }
  }
  const T result = T(log_of(combined(stats, row)));
  if (SUBTRACT) {
    for (uint q = 0; q < QUADS; q++) {
      store_less4(out, row.at(q), axis, values[q], float(result));
    }
  } else if (row.at(0) == 0) {
    *out = result;
  }
}

/** Reads the row once. With SUBTRACT, reads it a second time to subtract from it. */
template <bool SUBTRACT, typename T, typename Row>
METAL_FUNC void write_log(const device T* x, device T* out, uint axis, Row row, Quads<0>) {
  float values[READS];
  RowStats stats = no_stats();
  for (uint at = row.at(0); at < axis; at += row.stride()) {
    load_row4(values, x, at, axis);
    stats = with4(stats, values);
  }
  const T result = T(log_of(combined(stats, row)));
  if (SUBTRACT) {
    for (uint at = row.at(0); at < axis; at += row.stride()) {
      load_row4(values, x, at, axis);
      store_less4(out, at, axis, values, float(result));
    }
  } else if (row.at(0) == 0) {
    *out = result;
  }
}

template <typename T, bool SUBTRACT>
[[kernel]] void logsumexp_simd(
    const device T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant LogSumExpParams& params [[buffer(2)]],
    MLXP_SIMD_ROW) {
  const size_t row = size_t(group) * simds + simd;
  if (row >= params.rows) {
    return;
  }
  x += row * params.axis;
  out += SUBTRACT ? row * params.axis : row;
  write_log<SUBTRACT>(x, out, params.axis, SimdRow{lane}, Quads<1>());
}

template <typename T, uint QUADS, bool SUBTRACT>
[[kernel]] void logsumexp_row(
    const device T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant LogSumExpParams& params [[buffer(2)]],
    MLXP_GROUP_ROW) {
  const GroupRow<true> row = {{thread_index, threads, lane, simd, simds}, scratch};
  x += size_t(group) * params.axis;
  out += SUBTRACT ? size_t(group) * params.axis : group;
  write_log<SUBTRACT>(x, out, params.axis, row, Quads<QUADS>());
}

/**
 * The gradient of logsumexp is softmax(x) * g with one g per row. The gradient of log-softmax is g
 * - softmax(x) * sum(g). Rows have any length.
 */
template <typename T, bool SUBTRACT>
[[kernel]] void logsumexp_grad(
    const device T* x [[buffer(0)]],
    const device T* g [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant LogSumExpParams& params [[buffer(3)]],
    MLXP_GROUP_ROW) {
  const GroupRow<true> row = {{thread_index, threads, lane, simd, simds}, scratch};
  const uint axis = params.axis;
  x += size_t(group) * axis;
  g += SUBTRACT ? size_t(group) * axis : group;
  out += size_t(group) * axis;
  float values[READS];
  float gradients[READS];
  RowStats stats = no_stats();
  float total = 0.0f;
  for (uint at = row.at(0); at < axis; at += row.stride()) {
    load_row4(values, x, at, axis);
    stats = with4(stats, values);
    if (SUBTRACT) {
      const packed4<T> quad = load4(g, at, axis, T(0.0f));
      for (uint i = 0; i < READS; i++) {
        total += float(quad[i]);
      }
    }
  }
  stats = group_stats(stats, row.slots, row.place);
  total = SUBTRACT ? row.sum(total, 2) : float(*g);
  const float factor = total / stats.sum;
  for (uint at = row.at(0); at < axis; at += row.stride()) {
    load_row4(values, x, at, axis);
    exp4(0.0f, values, stats.maximum);
    const packed4<T> quad = SUBTRACT ? load4(g, at, axis, T(0.0f)) : packed4<T>();
    for (uint i = 0; i < READS; i++) {
      const float share = values[i] * factor;
      gradients[i] = SUBTRACT ? float(quad[i]) - share : share;
    }
    store4(out, at, axis, rounded<T>(gradients));
  }
}

#define LOGSUMEXP_KERNELS(DTYPE, T)                                                 \
  MLXP_KERNEL("mlxp_logsumexp_simd_" DTYPE, logsumexp_simd<T, false>)               \
  MLXP_KERNEL("mlxp_logsumexp_looped_" DTYPE, logsumexp_row<T, 0, false>)           \
  MLXP_KERNEL("mlxp_logsumexp_simd_subtracted_" DTYPE, logsumexp_simd<T, true>)     \
  MLXP_KERNEL("mlxp_logsumexp_row_subtracted_" DTYPE, logsumexp_row<T, 1, true>)    \
  MLXP_KERNEL("mlxp_logsumexp_row2_subtracted_" DTYPE, logsumexp_row<T, 2, true>)   \
  MLXP_KERNEL("mlxp_logsumexp_row4_subtracted_" DTYPE, logsumexp_row<T, 4, true>)   \
  MLXP_KERNEL("mlxp_logsumexp_looped_subtracted_" DTYPE, logsumexp_row<T, 0, true>) \
  MLXP_KERNEL("mlxp_logsumexp_grad_" DTYPE, logsumexp_grad<T, false>)               \
  MLXP_KERNEL("mlxp_logsumexp_grad_subtracted_" DTYPE, logsumexp_grad<T, true>)

MLXP_EACH_DTYPE(LOGSUMEXP_KERNELS)
