// Elements of 16 bits, two in a register.
#pragma once

#include "msl/types.h"

namespace msl {

/**
 * N elements of 16 bits. Compilers give each element of an array a register; these take half as
 * many, so that more threads run at a time.
 */
template <typename T, int N>
struct packed_words {
  static_assert(sizeof(T) == 2 && N % 2 == 0, "pairs of 16-bit elements");
  unsigned words[N / 2];

  struct Element {
    unsigned& word;
    unsigned shift;

    METAL_FUNC operator T() const {
      return metal::as_type<T>((unsigned short)(word >> shift));
    }
    explicit METAL_FUNC operator float() const {
      return float(metal::as_type<T>((unsigned short)(word >> shift)));
    }
    METAL_FUNC void operator=(T value) {
      const unsigned others = word & (0xffff0000u >> shift);
      word = others | unsigned(metal::as_type<unsigned short>(value)) << shift;
    }
  };

  METAL_FUNC Element operator[](unsigned i) {
    return {words[i / 2], i % 2 * 16};
  }
  METAL_FUNC T operator[](unsigned i) const {
    return metal::as_type<T>((unsigned short)(words[i / 2] >> (i % 2 * 16)));
  }
};

/** Makes the compiler forget where the words came from. */
template <typename T, int N>
METAL_FUNC void keep(packed_words<T, N>& elements) {
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    asm volatile("" : "+r"(elements.words[i]));
  }
}

} // namespace msl
