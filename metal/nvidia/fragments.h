// Products of small matrices whose elements are in the registers of a SIMD group, in the layout of
// the tensor cores of NVIDIA GPUs. Lane l = 4 g + t holds these elements. Left matrix (16 by 16):
// columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of rows g and g + 8. Right matrix (16 by 8): the same
// four indices as rows, in column g. Result (16 by 8): columns 2 t and 2 t + 1 of rows g and g + 8.
#pragma once

#include "common.h"

/** Two 16-bit elements in one register. */
template <typename T>
METAL_FUNC uint two_elements(float low, float high) {
#ifdef __CUDACC__
  return as_type<uint>(msl::Two<T>::rounded(low, high));
#else
  return as_type<uint>(vec<T, 2>(T(low), T(high)));
#endif
}

/** Subtracts two elements from two elements. */
template <typename T>
METAL_FUNC uint minus_two(uint a, uint b) {
#ifdef __CUDACC__
  typedef typename msl::Two<T>::type two;
  return as_type<uint>(__hsub2(as_type<two>(a), as_type<two>(b)));
#else
  return as_type<uint>(as_type<vec<T, 2> >(a) - as_type<vec<T, 2> >(b));
#endif
}

/** Computes (word & mask) | bits in one instruction. */
template <uint MASK>
METAL_FUNC uint masked_or(uint word, uint bits) {
#ifdef __CUDACC__
  return msl::masked_or<MASK>(word, bits);
#else
  return (word & MASK) | bits;
#endif
}

/** A constant that the compiler keeps in a register. */
METAL_FUNC uint in_register(uint value) {
#ifdef __CUDACC__
  return msl::in_register(value);
#else
  return value;
#endif
}

/** Loads four words that are read only once. On CUDA, their address is a multiple of 16. */
METAL_FUNC uint4 load_once(const device uint* from) {
#ifdef __CUDACC__
  return msl::load_once(from);
#else
  return uint4(*(const device packed_uint4*)from);
#endif
}

/** Loads four words. On CUDA, their address is a multiple of 16. */
METAL_FUNC uint4 load_words(const device uint* from) {
#ifdef __CUDACC__
  return *(const device uint4*)from;
#else
  return uint4(*(const device packed_uint4*)from);
#endif
}

/** Loads four numbers. On CUDA, their address is a multiple of 16. */
METAL_FUNC float4 load_floats(const device float* from) {
#ifdef __CUDACC__
  return *(const device float4*)from;
#else
  return float4(*(const device packed_float4*)from);
#endif
}

/** The sums of several values over a SIMD group, as by `simd_sum`. On CUDA, additions overlap. */
template <uint COUNT>
METAL_FUNC void simd_sums(thread float* values) {
#ifdef __CUDACC__
  for (uint step = 1; step < SIMD_WIDTH; step *= 2) {
    for (uint i = 0; i < COUNT; i++) {
      values[i] += simd_shuffle_xor(values[i], ushort(step));
    }
  }
#else
  for (uint i = 0; i < COUNT; i++) {
    values[i] = simd_sum(values[i]);
  }
#endif
}

/** Computes sums += left * right. */
template <typename T>
METAL_FUNC void multiply_add(
    thread float* sums, const thread uint* left, const thread uint* right, uint lane) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
  msl::multiply_add<T>(sums, left, right);
#else
  for (uint from = 0; from < 4; from++) { // the lanes that hold four columns of a row
    float a[8];
    for (uint i = 0; i < 4; i++) {
      const vec<T, 2> both =
          as_type<vec<T, 2> >(simd_shuffle(left[i], ushort(lane / 4 * 4 + from)));
      a[2 * i] = float(both[0]);
      a[2 * i + 1] = float(both[1]);
    }
    for (uint column = 0; column < 2; column++) {
      for (uint i = 0; i < 2; i++) {
        const uint lane_of_column = (lane % 4 * 2 + column) * 4 + from;
        const vec<T, 2> both = as_type<vec<T, 2> >(simd_shuffle(right[i], ushort(lane_of_column)));
        for (uint row = 0; row < 2; row++) {
          const thread float* of_row = a + 2 * (row + 2 * i);
          thread float& sum = sums[2 * row + column];
          sum = fma(of_row[0], float(both[0]), sum);
          sum = fma(of_row[1], float(both[1]), sum);
        }
      }
    }
  }
#endif
}
