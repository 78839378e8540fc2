#pragma once

#include <metal_stdlib>

#include "shared.h"

using namespace metal;
using namespace mlx_primitives;

// Instantiates a kernel with a name of this crate. Every name starts with mlxp_, so that it differs
// from all names of MLX.
#define MLXP_KERNEL(NAME, ...) \
  template [[host_name(NAME)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;

// Calls MACRO(name, type) for each dtype, with the names that mlx::core::type_to_name returns.
#define MLXP_EACH_DTYPE(MACRO) \
  MACRO("float32", float) MACRO("float16", half) MACRO("bfloat16", bfloat)

/**
 * Packed vectors need only the alignment of their elements, so a thread can load them from rows of
 * any length, at any offset.
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

#if MLXP_READS == 4

template <typename T>
using packed4 = typename Packed<T>::four;

/** Rounds the values to T. */
template <typename T>
METAL_FUNC packed4<T> rounded(const thread float* values) {
  packed4<T> quad;
  for (uint i = 0; i < READS; i++) {
    quad[i] = T(values[i]);
  }
  return quad;
}

/** Computes products and sums in float, then rounds them to T. */
template <typename T>
METAL_FUNC packed4<T> times(packed4<T> a, packed4<T> b) {
  for (uint i = 0; i < READS; i++) {
    a[i] = T(float(a[i]) * float(b[i]));
  }
  return a;
}

template <typename T>
METAL_FUNC packed4<T> plus(packed4<T> a, packed4<T> b) {
  for (uint i = 0; i < READS; i++) {
    a[i] = T(float(a[i]) + float(b[i]));
  }
  return a;
}

/**
 * Makes the compiler convert a packed row again after a barrier. While a threadgroup waits, the row
 * then takes only the registers of its packed elements. This has an effect only on CUDA.
 */
template <typename T>
METAL_FUNC void keep_packed(thread packed4<T>&) {}

#else

template <typename T>
using packed4 = msl::packed_words<T, READS>; // READS elements

template <typename T>
METAL_FUNC packed4<T> rounded(const thread float* values) {
  return msl::rounded<T, READS>(values);
}

template <typename T>
METAL_FUNC packed4<T> times(packed4<T> a, packed4<T> b) {
  return msl::times(a, b);
}

template <typename T>
METAL_FUNC packed4<T> plus(packed4<T> a, packed4<T> b) {
  return msl::plus(a, b);
}

template <typename T>
METAL_FUNC void keep_packed(thread packed4<T>& quad) {
  msl::keep(quad);
}

#endif

// Whether a kernel loads a weight before the barrier at which threads exchange their sums, so that
// the load overlaps the wait. On CUDA a later load is better: it needs registers for a shorter
// time, so that a multiprocessor runs more threadgroups at a time. There, `rms_norm` of rows in
// registers also exchanges its sums with one barrier instead of two.
enum : uint {
#ifdef __CUDACC__
  LOADS_EARLY = 0,
#else
  LOADS_EARLY = 1,
#endif
};

/** Loads READS elements of a row, from element `at` on. Elements past its end are `pad`. */
template <typename T>
METAL_FUNC packed4<T> load4(const device T* row, uint at, uint axis, T pad) {
  const device T* from = row + at;
  if (at + READS <= axis) {
    return *(const device packed4<T>*)from;
  }
  packed4<T> quad;
  for (uint i = 0; i < READS; i++) {
    quad[i] = !WHOLE_QUADS && at + i < axis ? from[i] : pad;
  }
  return quad;
}

template <typename T>
METAL_FUNC void store4(device T* row, uint at, uint axis, packed4<T> quad) {
  device T* to = row + at;
  if (at + READS <= axis) {
    *(device packed4<T>*)to = quad;
    return;
  }
  for (uint i = 0; i < READS; i++) {
    if (!WHOLE_QUADS && at + i < axis) {
      to[i] = quad[i];
    }
  }
}

/** The position of a thread in its threadgroup. */
struct Place {
  uint index;
  uint threads;
  uint lane;
  uint simd;
  uint simds;
};

// Every SIMD group writes its partial result to a separate slot. A threadgroup has at most 32 SIMD
// groups, so one SIMD group can load all slots, one per lane. The first SIMD group combines the
// slots and shares the result, which needs a second barrier. In the `_at_once` variants every SIMD
// group combines the slots, which needs one more SIMD operation per group.

METAL_FUNC float combined_sum(const threadgroup float* slots, Place at) {
  return simd_sum(at.lane < at.simds ? slots[at.lane] : 0.0f);
}

METAL_FUNC float combined_max(const threadgroup float* slots, Place at) {
  return simd_max(at.lane < at.simds ? slots[at.lane] : -FLT_MAX);
}

METAL_FUNC void write_slot(float partial, threadgroup float* slots, Place at) {
  if (at.lane == 0) {
    slots[at.simd] = partial;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

/** Returns the result of the first lane of the first SIMD group, in every thread. */
METAL_FUNC float shared_result(float result, threadgroup float* slots, Place at) {
  if (at.simd == 0 && at.lane == 0) {
    slots[0] = result;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return slots[0];
}

/** Returns the sum over the threadgroup, in every thread. */
METAL_FUNC float group_sum(float value, threadgroup float* slots, Place at) {
  float sum = simd_sum(value);
  write_slot(sum, slots, at);
  if (at.simd == 0) {
    sum = combined_sum(slots, at);
  }
  return shared_result(sum, slots, at);
}

/** Returns the maximum over the threadgroup, in every thread. */
METAL_FUNC float group_max(float value, threadgroup float* slots, Place at) {
  float maximum = simd_max(value);
  write_slot(maximum, slots, at);
  if (at.simd == 0) {
    maximum = combined_max(slots, at);
  }
  return shared_result(maximum, slots, at);
}

METAL_FUNC float group_sum_at_once(float value, threadgroup float* slots, Place at) {
  write_slot(simd_sum(value), slots, at);
  return combined_sum(slots, at);
}

METAL_FUNC float group_max_at_once(float value, threadgroup float* slots, Place at) {
  write_slot(simd_max(value), slots, at);
  return combined_max(slots, at);
}
