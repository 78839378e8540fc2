// <simd/simd.h>: other names for Metal's types, in a header that host programs and kernels share.
#pragma once

#include <metal_stdlib>

#define MSL_SIMD_NAMES(KIND, T) \
  typedef T simd_##T;           \
  typedef T KIND##_##T;         \
  namespace simd {              \
  using ::T;                    \
  }
#define MSL_SIMD_EACH(KIND, T) \
  MSL_SIMD_NAMES(KIND, T##2) MSL_SIMD_NAMES(KIND, T##3) MSL_SIMD_NAMES(KIND, T##4)
#define MSL_SIMD_VECTORS(T) MSL_SIMD_EACH(vector, T)
#define MSL_SIMD_MATRICES(T) \
  MSL_SIMD_EACH(matrix, T##2x) MSL_SIMD_EACH(matrix, T##3x) MSL_SIMD_EACH(matrix, T##4x)
MSL_EACH_NUMBER(MSL_SIMD_VECTORS)
MSL_SIMD_MATRICES(float)
MSL_SIMD_MATRICES(half)
#undef MSL_SIMD_MATRICES
#undef MSL_SIMD_VECTORS
#undef MSL_SIMD_EACH
#undef MSL_SIMD_NAMES
