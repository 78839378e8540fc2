// Vectors of 16-bit elements. A 32-bit register holds two elements.
#pragma once

#include "msl/types.h"

namespace msl {

/** Two 16-bit elements in a register. Every operation rounds once. */
template <typename T>
struct Two;

template <>
struct Two<__half> {
  typedef __half2 type;
  static METAL_FUNC type rounded(float low, float high) {
    return __floats2half2_rn(low, high);
  }
  static METAL_FUNC float at(unsigned word, unsigned shift) {
    return __half2float(__ushort_as_half((unsigned short)(word >> shift)));
  }
};

template <>
struct Two<__nv_bfloat16> {
  typedef __nv_bfloat162 type;
  static METAL_FUNC type rounded(float low, float high) {
    return __floats2bfloat162_rn(low, high);
  }
  static METAL_FUNC float at(unsigned word, unsigned shift) {
    return __uint_as_float(shift == 0 ? word << 16 : word & 0xffff0000u);
  }
};

/** Refers to one of the two 16-bit numbers in a 32-bit word. */
template <typename T>
struct Number {
  unsigned word;
  unsigned shift;

  METAL_FUNC operator T() const {
    return metal::as_type<T>((unsigned short)(word >> shift));
  }
  explicit METAL_FUNC operator float() const {
    return Two<T>::at(word, shift);
  }
};

/**
 * N elements of 16 bits, with two in each register. In a plain array, compilers give each element a
 * register. With half as many registers, more threads can run at a time.
 */
template <typename T, int N>
struct packed_words {
  static_assert(sizeof(T) == 2 && N % 2 == 0, "pairs of 16-bit elements");
  typedef typename Two<T>::type two;
  unsigned words[N / 2];

  struct Element {
    unsigned& word;
    unsigned shift;

    METAL_FUNC operator T() const {
      return Number<T>{word, shift};
    }
    explicit METAL_FUNC operator float() const {
      return float(Number<T>{word, shift});
    }
    METAL_FUNC void operator=(T value) {
      const unsigned others = word & (0xffff0000u >> shift);
      word = others | unsigned(metal::as_type<unsigned short>(value)) << shift;
    }
  };

  METAL_FUNC Element operator[](unsigned i) {
    return {words[i / 2], i % 2 * 16};
  }
  METAL_FUNC Number<T> operator[](unsigned i) const {
    return {words[i / 2], i % 2 * 16};
  }

  METAL_FUNC two pair(int i) const {
    two value;
    memcpy(&value, &words[i], sizeof(value));
    return value;
  }
  METAL_FUNC void set_pair(int i, two value) {
    memcpy(&words[i], &value, sizeof(value));
  }
};

/** Reads elements at an address that need not be a multiple of a register's size. */
template <typename T, int N>
METAL_FUNC packed_words<T, N> read_apart(const packed_words<T, N>* at) {
  const unsigned short* from = reinterpret_cast<const unsigned short*>(at);
  packed_words<T, N> all;
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    all.words[i] = unsigned(from[2 * i]) | unsigned(from[2 * i + 1]) << 16;
  }
  return all;
}

template <typename T, int N>
METAL_FUNC void write_apart(packed_words<T, N>* at, packed_words<T, N> value) {
  unsigned short* to = reinterpret_cast<unsigned short*>(at);
#pragma unroll
  for (int i = 0; i < N; i++) {
    to[i] = (unsigned short)(value.words[i / 2] >> (i % 2 * 16));
  }
}

/** Converts the values and rounds them. */
template <typename T, int N>
METAL_FUNC packed_words<T, N> rounded(const float* values) {
  packed_words<T, N> all;
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    all.set_pair(i, Two<T>::rounded(values[2 * i], values[2 * i + 1]));
  }
  return all;
}

// Rounding the float32 product or sum of two elements gives the same bits as a 16-bit operation.

template <typename T, int N>
METAL_FUNC packed_words<T, N> times(packed_words<T, N> a, packed_words<T, N> b) {
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    a.set_pair(i, __hmul2_rn(a.pair(i), b.pair(i)));
  }
  return a;
}

template <typename T, int N>
METAL_FUNC packed_words<T, N> plus(packed_words<T, N> a, packed_words<T, N> b) {
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    a.set_pair(i, __hadd2_rn(a.pair(i), b.pair(i)));
  }
  return a;
}

/** Hides from the compiler how the words were computed. */
template <typename T, int N>
METAL_FUNC void keep(packed_words<T, N>& elements) {
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    asm volatile("" : "+r"(elements.words[i]));
  }
}

} // namespace msl
