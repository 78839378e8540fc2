// Barriers, and exchanges between the lanes of a SIMD group.
#pragma once

#include "msl/places.h"

namespace msl {

constexpr unsigned ALL_LANES = 0xffffffffu;

/** Calls `exchange` on each 32-bit word of a value of any type. */
template <typename T, typename F>
METAL_FUNC T each_word(T value, F exchange) {
  constexpr unsigned WORDS = (sizeof(T) + 3) / 4;
  unsigned words[WORDS] = {};
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (unsigned i = 0; i < WORDS; i++) {
    words[i] = exchange(words[i]);
  }
  memcpy(&value, words, sizeof(T));
  return value;
}

/** The value of the lane whose CUDA number is `from`. */
template <typename T>
METAL_FUNC T of_lane(T value, unsigned from) {
  return each_word(value, [from](unsigned word) { return __shfl_sync(ALL_LANES, word, from); });
}

METAL_FUNC unsigned own_lane() {
  return metal_lane(cuda_index() & 31);
}

/** Combines the values of all lanes. Every lane gets the result. */
template <typename T, typename F>
METAL_FUNC T fold(T x, F combine) {
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    x = combine(
        x, each_word(x, [step](unsigned word) { return __shfl_xor_sync(ALL_LANES, word, step); }));
  }
  return x;
}

/** An inclusive scan: combines each lane's value with the values of all lanes before it. */
template <typename T, typename F>
METAL_FUNC T scan(T x, F combine) {
  const unsigned lane = own_lane();
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const T other = of_lane(x, cuda_lane((lane - step) & 31));
    x = lane >= step ? combine(other, x) : x;
  }
  return x;
}

} // namespace msl

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };

METAL_FUNC mem_flags operator|(mem_flags a, mem_flags b) {
  return mem_flags(int(a) | int(b));
}
METAL_FUNC void threadgroup_barrier(mem_flags) {
  __syncthreads();
}
METAL_FUNC void simdgroup_barrier(mem_flags) {
  __syncwarp();
}

template <typename T>
METAL_FUNC T simd_sum(T x) {
  return ::msl::fold(x, [](T a, T b) { return T(a + b); });
}
template <typename T>
METAL_FUNC T simd_product(T x) {
  return ::msl::fold(x, [](T a, T b) { return T(a * b); });
}
/** The largest value of all lanes. NaN is ignored, as in Metal's fmax. */
METAL_FUNC float simd_max(float x) {
  return ::msl::fold(x, [](float a, float b) { return ::fmaxf(a, b); });
}
METAL_FUNC float simd_min(float x) {
  return ::msl::fold(x, [](float a, float b) { return ::fminf(a, b); });
}
template <typename T>
METAL_FUNC T simd_max(T x) {
  return ::msl::fold(x, [](T a, T b) { return a < b ? b : a; });
}
template <typename T>
METAL_FUNC T simd_min(T x) {
  return ::msl::fold(x, [](T a, T b) { return b < a ? b : a; });
}
template <typename T>
METAL_FUNC T simd_and(T x) {
  return ::msl::fold(x, [](T a, T b) { return T(a & b); });
}
template <typename T>
METAL_FUNC T simd_or(T x) {
  return ::msl::fold(x, [](T a, T b) { return T(a | b); });
}
template <typename T>
METAL_FUNC T simd_xor(T x) {
  return ::msl::fold(x, [](T a, T b) { return T(a ^ b); });
}
template <typename T>
METAL_FUNC T simd_prefix_inclusive_sum(T x) {
  return ::msl::scan(x, [](T a, T b) { return T(a + b); });
}
template <typename T>
METAL_FUNC T simd_shuffle(T x, ushort lane) {
  return ::msl::of_lane(x, ::msl::cuda_lane(lane & 31));
}
template <typename T>
METAL_FUNC T simd_shuffle_xor(T x, ushort mask) {
  // Metal's lane numbers are CUDA's with their bits permuted, so permute the bits of the mask in
  // the same way.
  const unsigned by = ::msl::cuda_lane(mask & 31);
  return ::msl::each_word(
      x, [by](unsigned word) { return __shfl_xor_sync(::msl::ALL_LANES, word, by); });
}
template <typename T>
METAL_FUNC T simd_shuffle_down(T x, ushort delta) {
  const unsigned from = ::msl::own_lane() + delta;
  return simd_shuffle(x, ushort(from < 32 ? from : ::msl::own_lane()));
}
template <typename T>
METAL_FUNC T simd_shuffle_up(T x, ushort delta) {
  const unsigned own = ::msl::own_lane();
  return simd_shuffle(x, ushort(own >= delta ? own - delta : own));
}
template <typename T>
METAL_FUNC T simd_shuffle_rotate_down(T x, ushort delta) {
  return simd_shuffle(x, ushort((::msl::own_lane() + delta) & 31));
}
template <typename T>
METAL_FUNC T simd_shuffle_rotate_up(T x, ushort delta) {
  return simd_shuffle(x, ushort((::msl::own_lane() - delta) & 31));
}
template <typename T>
METAL_FUNC T simd_broadcast(T x, ushort lane) {
  return simd_shuffle(x, lane);
}
template <typename T>
METAL_FUNC T simd_prefix_exclusive_sum(T x) {
  const T before = simd_shuffle_up(simd_prefix_inclusive_sum(x), ushort(1));
  return ::msl::own_lane() == 0 ? T(0) : before;
}
template <typename T>
METAL_FUNC T simd_broadcast_first(T x) {
  // Lane 0 has the number 0 in CUDA and in Metal.
  return ::msl::of_lane(x, 0);
}
METAL_FUNC bool simd_any(bool vote) {
  return __any_sync(::msl::ALL_LANES, vote);
}
METAL_FUNC bool simd_all(bool vote) {
  return __all_sync(::msl::ALL_LANES, vote);
}
METAL_FUNC bool simd_is_first() {
  return ::msl::own_lane() == 0;
}

template <typename T>
METAL_FUNC T quad_shuffle_xor(T x, ushort mask) {
  return simd_shuffle_xor(x, ushort(mask & 3));
}
template <typename T>
METAL_FUNC T quad_sum(T x) {
  x = T(x + simd_shuffle_xor(x, ushort(1)));
  return T(x + simd_shuffle_xor(x, ushort(2)));
}
template <typename T>
METAL_FUNC T quad_broadcast(T x, ushort lane) {
  return simd_shuffle(x, ushort((::msl::own_lane() & ~3u) | lane));
}

} // namespace metal
