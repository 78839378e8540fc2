// Computes exponentials of a row. The kernels of softmax, masked softmax, logsumexp and
// cross-entropy use this file.
#pragma once

#include "rows.h"

/** fast::exp, as in MLX. Its argument is never positive, and its error cancels in the sum. */
METAL_FUNC float softmax_exp(float x) {
  return fast::exp(x);
}

/** The larger value, or a if one of them is NaN. The result of max() for NaN depends on the
 * hardware. */
METAL_FUNC float larger(float a, float b) {
  return a < b ? b : a;
}

template <typename T>
METAL_FUNC void load_row4(thread float* values, const device T* row, uint at, uint axis) {
  packed4<T> quad = load4(row, at, axis, T(-INFINITY));
  for (uint i = 0; i < READS; i++) {
    values[i] = float(quad[i]);
  }
}

template <typename T>
METAL_FUNC void store_scaled4(
    device T* row, uint at, uint axis, const thread float* values, float factor) {
  float scaled[READS];
  for (uint i = 0; i < READS; i++) {
    scaled[i] = values[i] * factor;
  }
  store4(row, at, axis, rounded<T>(scaled));
}

METAL_FUNC float max4(float maximum, const thread float* values) {
  for (uint i = 0; i < READS; i++) {
    maximum = larger(maximum, values[i]);
  }
  return maximum;
}

/** Replaces values by exp(values - maximum), and adds them to `sum` in the order of the row. */
METAL_FUNC float exp4(float sum, thread float* values, float maximum) {
  for (uint i = 0; i < READS; i++) {
    values[i] = softmax_exp(values[i] - maximum);
    sum += values[i];
  }
  return sum;
}

/** The maximum of the elements read so far, and the sum of exponentials relative to it. */
struct RowStats {
  float maximum;
  float sum;
};

METAL_FUNC RowStats no_stats() {
  return {-FLT_MAX, 0.0f};
}

/** Adds READS elements, and replaces them by their exponentials relative to the new maximum. */
METAL_FUNC RowStats with4(RowStats stats, thread float* values) {
  const float grown = max4(stats.maximum, values);
  if (grown > stats.maximum) { // else the factor is exp(0) = 1
    stats.sum *= softmax_exp(stats.maximum - grown);
    stats.maximum = grown;
  }
  stats.sum = exp4(stats.sum, values, stats.maximum);
  return stats;
}

METAL_FUNC RowStats simd_stats(RowStats stats) {
  const float maximum = simd_max(stats.maximum);
  return {maximum, simd_sum(stats.sum * softmax_exp(stats.maximum - maximum))};
}

/** Combines the threadgroup's statistics in every thread, with one barrier for both numbers. */
METAL_FUNC RowStats group_stats(RowStats stats, threadgroup float* scratch, Place at) {
  const RowStats simd = simd_stats(stats);
  if (at.lane == 0) {
    scratch[at.simd] = simd.maximum;
    scratch[at.simds + at.simd] = simd.sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  RowStats part = no_stats();
  if (at.lane < at.simds) {
    part = RowStats{scratch[at.lane], scratch[at.simds + at.lane]};
  }
  return simd_stats(part);
}

// The maximum starts at the lowest finite number, not at -inf. Then exp(-inf - max) is 0, and a row
// with only -inf gives 0 * (1 / 0), which is NaN as in MLX. Short rows are padded with -inf.

/**
 * Writes the softmax of a row. The scores before `begin` and from `end` on may have a common value
 * that the kernel does not read. `with_unseen` and `total` include these scores.
 */
template <typename Scores, typename Row, uint QUADS>
METAL_FUNC void write_softmax(Scores scores, Row row, Quads<QUADS>) {
  float values[QUADS][READS];
  float maximum = -FLT_MAX;
  for (uint q = 0; q < QUADS; q++) {
    scores.load(values[q], row.at(q));
    maximum = max4(maximum, values[q]);
  }
  maximum = scores.with_unseen(row.maximum(maximum));
  float sum = 0.0f;
  for (uint q = 0; q < QUADS; q++) {
    sum = exp4(sum, values[q], maximum);
  }
  const float factor = 1.0f / scores.total(row.sum(sum, 1), maximum);
  for (uint q = 0; q < QUADS; q++) {
    scores.store(values[q], row.at(q), factor);
  }
}

/** Reads the row twice: first for the maximum and the sum together, then to write the results. */
template <typename Scores, typename Row>
METAL_FUNC void write_softmax(Scores scores, Row row, Quads<0>) {
  float values[READS];
  RowStats stats = no_stats();
  for (uint at = scores.begin + row.at(0); at < scores.end; at += row.stride()) {
    scores.load(values, at);
    stats = with4(stats, values);
  }
  stats = group_stats(stats, row.slots, row.place);
  const float maximum = scores.with_unseen(stats.maximum);
  const float factor = 1.0f / scores.total(scores.rescaled(stats, maximum), maximum);
  for (uint at = row.at(0); at < scores.axis; at += row.stride()) {
    scores.load(values, at);
    exp4(0.0f, values, maximum);
    scores.store(values, at, factor);
  }
}
