// A row's maximum and sum of exponentials, computed together.
#pragma once

#include "softmax_rows.h"

/** The maximum of the elements read so far, and the sum of exponentials relative to it. */
struct RowStats {
  float maximum;
  float sum;
};

METAL_FUNC RowStats no_stats() {
  return {-FLT_MAX, 0.0f};
}

/** Adds four elements, which become their exponentials relative to the new maximum. */
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

/** Combines the stats of the threadgroup in every thread; one barrier covers both numbers. */
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
