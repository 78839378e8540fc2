// Code that the kernels for rows share, such as the threads of a row.
#pragma once

#include "common.h"

// The parameters that follow the buffers: MLXP_SIMD_ROW for kernels in which every SIMD group has a
// row, and MLXP_GROUP_ROW for kernels in which every threadgroup has a row.
#define MLXP_SIMD_ROW                                                                   \
  uint group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]], \
      uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]
#define MLXP_GROUP_ROW                                                                             \
  threadgroup float *scratch [[threadgroup(0)]], uint group [[threadgroup_position_in_grid]],      \
      uint thread_index [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]], \
      uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],       \
      uint simds [[simdgroups_per_threadgroup]]

/**
 * A thread holds N quads of READS elements in registers. The stride between its quads is a complete
 * SIMD group or threadgroup, as in MLX's order of additions. With N = 0 the row may have any
 * length, and the kernel reads the row again.
 */
template <uint N>
struct Quads {};

/** The threads of a row of up to SIMD_ROW elements: one SIMD group, without barriers. */
struct SimdRow {
  enum : uint { EARLY = 1 }; // LOADS_EARLY, without a barrier and with few registers
  uint lane;

  METAL_FUNC uint at(uint q) const {
    return (q * SIMD_WIDTH + lane) * READS;
  }
  METAL_FUNC float sum(float value, uint) const {
    return simd_sum(value);
  }
  METAL_FUNC float maximum(float value) const {
    return simd_max(value);
  }
};

/**
 * The threads of a row that a threadgroup processes. Every sum needs separate slots, because a slow
 * SIMD group may still be reading the previous result. AT_ONCE selects one barrier instead of two.
 */
template <bool AT_ONCE>
struct GroupRow {
  enum : uint { EARLY = LOADS_EARLY };
  Place place;
  threadgroup float* slots;

  METAL_FUNC uint at(uint q) const {
    return (q * place.threads + place.index) * READS;
  }
  METAL_FUNC uint stride() const {
    return place.threads * READS;
  }
  METAL_FUNC float sum(float value, uint which) const {
    threadgroup float* own = slots + which * place.simds;
    return AT_ONCE ? group_sum_at_once(value, own, place) : group_sum(value, own, place);
  }
  METAL_FUNC float maximum(float value) const {
    return AT_ONCE ? group_max_at_once(value, slots, place) : group_max(value, slots, place);
  }
};
