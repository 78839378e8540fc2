// Implements the intrinsics of AIR (Apple's LLVM IR) with this crate's Metal headers. The names of
// the functions have underscores in place of the dots in the names of the intrinsics.
#include <metal_stdlib>
using namespace metal;

#define ONE(NAME, T, CALL) \
  extern "C" T air_##NAME(T x) { return CALL(x); }
#define TWO(NAME, T, CALL) \
  extern "C" T air_##NAME(T x, T y) { return CALL(x, y); }
#define CONVERT(NAME, TO, FROM) \
  extern "C" TO air_convert_##NAME(FROM x) { return TO(x); }

#define SIMD(NAME, T)              \
  ONE(simd_sum_##NAME, T, simd_sum) \
  ONE(simd_max_##NAME, T, simd_max) \
  ONE(simd_min_##NAME, T, simd_min)
SIMD(f32, float)
SIMD(f16, half)
SIMD(bf16, bfloat)
SIMD(s_i32, int)
SIMD(u_i32, uint)

#define MATH(NAME, CALL)                  \
  ONE(NAME##_f32, float, precise::CALL)   \
  ONE(fast_##NAME##_f32, float, fast::CALL)
MATH(exp, exp)
MATH(exp2, exp2)
MATH(log, log)
MATH(log2, log2)
MATH(cos, cos)
MATH(sin, sin)
MATH(sqrt, sqrt)
MATH(rsqrt, rsqrt)
MATH(tanh, tanh)
MATH(fabs, fabs)
#define MULTIPLY_ADD(NAME, T) \
  extern "C" T air_fmuladd_##NAME(T x, T y, T z) { return x * y + z; }
MULTIPLY_ADD(f32, float)
MULTIPLY_ADD(f16, half)
MULTIPLY_ADD(bf16, bfloat)
TWO(fmax_f32, float, fmax)
TWO(fmin_f32, float, fmin)
TWO(fast_fmax_f32, float, fmax)
TWO(fast_fmin_f32, float, fmin)

CONVERT(f_f32_u_i32, float, uint)
CONVERT(f_f32_s_i32, float, int)
CONVERT(f_f32_u_i16, float, ushort)
CONVERT(f_f32_f_f16, float, half)
CONVERT(f_f16_f_f32, half, float)
CONVERT(u_i32_f_f32, uint, float)
CONVERT(s_i32_f_f32, int, float)
