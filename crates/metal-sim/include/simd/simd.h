// <simd/simd.h>, which programs share with their kernels: other names of Metal's types.
#pragma once

#include <metal_stdlib>

#define MSL_SIMD_NAMES(T) \
  typedef T simd_##T;     \
  typedef T vector_##T;   \
  namespace simd {        \
  using ::T;              \
  }
#define MSL_SIMD_EACH(T) MSL_SIMD_NAMES(T##2) MSL_SIMD_NAMES(T##3) MSL_SIMD_NAMES(T##4)
MSL_EACH_NUMBER(MSL_SIMD_EACH)
#undef MSL_SIMD_NAMES

#define MSL_SIMD_NAMES(T) \
  typedef T simd_##T;     \
  typedef T matrix_##T;   \
  namespace simd {        \
  using ::T;              \
  }
#define MSL_SIMD_COLUMNS(T) MSL_SIMD_EACH(T##2x) MSL_SIMD_EACH(T##3x) MSL_SIMD_EACH(T##4x)
MSL_SIMD_COLUMNS(float)
MSL_SIMD_COLUMNS(half)
#undef MSL_SIMD_COLUMNS
#undef MSL_SIMD_EACH
#undef MSL_SIMD_NAMES
