// Tensor core instructions for metal/nvidia/fragments.h, and loads that the L1 cache does not keep.
#pragma once

#include "msl/types.h"
#include "msl/words.h"

namespace msl {

METAL_FUNC ::metal::vec<unsigned, 4> load_once(const unsigned* from) {
  ::metal::vec<unsigned, 4> all;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(all.x), "=r"(all.y), "=r"(all.z), "=r"(all.w)
               : "l"(from));
  return all;
}

/**
 * Computes (word & MASK) | bits in one instruction. If MASK and bits were both constants, the
 * compiler would emit two instructions.
 */
template <unsigned MASK>
METAL_FUNC unsigned masked_or(unsigned word, unsigned bits) {
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "n"(MASK), "r"(bits));
  return result;
}

/** A constant that the compiler keeps in a register. */
METAL_FUNC unsigned in_register(unsigned value) {
  asm volatile("" : "+r"(value));
  return value;
}

#if __CUDA_ARCH__ >= 800

#define MSL_MULTIPLY_ADD(TYPE)                                               \
  asm volatile(                                                              \
      "mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE                 \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])           \
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]))

template <typename T>
METAL_FUNC void multiply_add(float* sums, const unsigned* left, const unsigned* right) {
  if constexpr (is_same<T, __half>::value) {
    MSL_MULTIPLY_ADD("f16");
  } else {
    MSL_MULTIPLY_ADD("bf16");
  }
}

#undef MSL_MULTIPLY_ADD

#endif

} // namespace msl
