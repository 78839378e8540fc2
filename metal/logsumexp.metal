#include "logsumexp.h"
#include "softmax_stats.h"

// Maxima start at the lowest finite number, so that a row of nothing but -inf ends in log(0).
// SUBTRACT gives log-softmax: the logarithm, rounded as in MLX, is subtracted from the row.

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

/** Rows of up to SIMD_ROW elements, one for each SIMD group: no barrier. */
template <typename T, bool SUBTRACT>
[[kernel]] void logsumexp_simd(
    const device T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant LogSumExpParams& params [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const size_t row = size_t(group) * simds + simd;
  if (row >= params.rows) {
    return;
  }
  x += row * params.axis;
  const uint at = lane * READS;

  float values[READS];
  load_row4(values, x, at, params.axis);
  float exponentials[READS] = {values[0], values[1], values[2], values[3]};
  RowStats stats = no_stats();
  stats.maximum = simd_max(max4(stats.maximum, values));
  stats.sum = simd_sum(exp4(0.0f, exponentials, stats.maximum));
  const T result = T(log_of(stats));
  if (SUBTRACT) {
    store_less4(out + row * params.axis, at, params.axis, values, float(result));
  } else if (lane == 0) {
    out[row] = result;
  }
}

/** A row of any length for each threadgroup, read once, and once more to subtract from it. */
template <typename T, bool SUBTRACT>
[[kernel]] void logsumexp_looped(
    const device T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant LogSumExpParams& params [[buffer(2)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const Place place = {thread_index, threads, lane, simd, simds};
  x += size_t(group) * params.axis;

  float values[READS];
  RowStats stats = no_stats();
  for (uint at = thread_index * READS; at < params.axis; at += threads * READS) {
    load_row4(values, x, at, params.axis);
    stats = with4(stats, values);
  }
  const T result = T(log_of(group_stats(stats, scratch, place)));
  if (SUBTRACT) {
    out += size_t(group) * params.axis;
    for (uint at = thread_index * READS; at < params.axis; at += threads * READS) {
      load_row4(values, x, at, params.axis);
      store_less4(out, at, params.axis, values, float(result));
    }
  } else if (thread_index == 0) {
    out[group] = result;
  }
}

/** A row for each threadgroup, QUADS * READS elements for each thread, kept in registers. */
template <typename T, uint QUADS>
[[kernel]] void logsumexp_row(
    const device T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant LogSumExpParams& params [[buffer(2)]],
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
  RowStats stats = no_stats();
  for (uint q = 0; q < QUADS; q++) {
    load_row4(values[q], x, (q * threads + thread_index) * READS, params.axis);
    stats.maximum = max4(stats.maximum, values[q]);
  }
  for (uint q = 0; q < QUADS; q++) {
    for (uint i = 0; i < READS; i++) {
      stats.sum += softmax_exp(values[q][i] - stats.maximum);
    }
  }
  const T result = T(log_of(group_stats(stats, scratch, place)));
  for (uint q = 0; q < QUADS; q++) {
    const uint at = (q * threads + thread_index) * READS;
    store_less4(out, at, params.axis, values[q], float(result));
  }
}

#define LOGSUMEXP_KERNELS(DTYPE, T)                                             \
  MLXP_KERNEL("mlxp_logsumexp_simd_" DTYPE, logsumexp_simd<T, false>)           \
  MLXP_KERNEL("mlxp_logsumexp_looped_" DTYPE, logsumexp_looped<T, false>)       \
  MLXP_KERNEL("mlxp_logsumexp_simd_subtracted_" DTYPE, logsumexp_simd<T, true>) \
  MLXP_KERNEL("mlxp_logsumexp_row_subtracted_" DTYPE, logsumexp_row<T, 1>)      \
  MLXP_KERNEL("mlxp_logsumexp_row2_subtracted_" DTYPE, logsumexp_row<T, 2>)     \
  MLXP_KERNEL("mlxp_logsumexp_row4_subtracted_" DTYPE, logsumexp_row<T, 4>)     \
  MLXP_KERNEL("mlxp_logsumexp_looped_subtracted_" DTYPE, logsumexp_looped<T, true>)

MLXP_EACH_DTYPE(LOGSUMEXP_KERNELS)
