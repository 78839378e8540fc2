#pragma once

#include <metal_stdlib>

#include "shared.h"

using namespace metal;
using namespace mlx_primitives;

// Explicit instantiation under a name of ours; every name starts with mlxp_, so that none
// can be taken for one of MLX's.
#define MLXP_KERNEL(NAME, ...) \
  template [[host_name(NAME)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;

// MACRO(name, type) for each dtype, with the names that mlx::core::type_to_name gives.
#define MLXP_EACH_DTYPE(MACRO) \
  MACRO("float32", float) MACRO("float16", half) MACRO("bfloat16", bfloat)

/**
 * Packed vectors need only their element's alignment, so they may be read and written
 * in rows of any length, at any offset.
 */
template <typename T>
struct Packed;

template <>
struct Packed<float> {
  typedef packed_float2 two;
  typedef packed_float4 four;
};

template <>
struct Packed<half> {
  typedef packed_half2 two;
  typedef packed_half4 four;
};

template <>
struct Packed<bfloat> {
  typedef packed_bfloat2 two;
  typedef packed_bfloat4 four;
};

template <typename T>
using packed2 = typename Packed<T>::two;

template <typename T>
using packed4 = typename Packed<T>::four;

/** Elements at, ..., at + 3 of a row; `pad` stands for those past its end. */
template <typename T>
METAL_FUNC packed4<T> load4(const device T* row, uint at, uint axis, T pad) {
  if (at + READS <= axis) {
    return *(const device packed4<T>*)(row + at);
  }
  packed4<T> quad;
  for (uint i = 0; i < READS; i++) {
    quad[i] = at + i < axis ? row[at + i] : pad;
  }
  return quad;
}

template <typename T>
METAL_FUNC void store4(device T* row, uint at, uint axis, packed4<T> quad) {
  if (at + READS <= axis) {
    *(device packed4<T>*)(row + at) = quad;
    return;
  }
  for (uint i = 0; i < READS; i++) {
    if (at + i < axis) {
      row[at + i] = quad[i];
    }
  }
}

/** A thread's place in its threadgroup. */
struct Place {
  uint index;
  uint threads;
  uint lane;
  uint simd;
  uint simds;
};

// The reductions below cost one barrier: every SIMD group writes its partial result to a
// slot of its own and then combines all of them itself, so nothing is broadcast back.
// A threadgroup has at most 32 SIMD groups, so one lane each is enough for the slots.

/** Sum over the threadgroup, in every thread. */
METAL_FUNC float group_sum(float value, threadgroup float* slots, Place at) {
  value = simd_sum(value);
  if (at.lane == 0) {
    slots[at.simd] = value;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(at.lane < at.simds ? slots[at.lane] : 0.0f);
}

/** Maximum over the threadgroup, in every thread. */
METAL_FUNC float group_max(float value, threadgroup float* slots, Place at) {
  value = simd_max(value);
  if (at.lane == 0) {
    slots[at.simd] = value;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_max(at.lane < at.simds ? slots[at.lane] : -FLT_MAX);
}
