// <metal_math>. Functions of float call the host's libm. With MSL_GPU, gpu.h replaces some of these
// functions. Functions of half compute in float and round the result. Functions of bfloat return
// float. Functions of vectors work element by element. fast:: and precise:: give equal results,
// since a host cannot reproduce the errors of the GPU's fast functions.
#pragma once

#define __METAL_MAYBE_FAST_MATH__ 0
#define __METAL_FAST_MATH__ 1
#define __METAL_PRECISE_MATH__ 2

/** The scalar float functions that libm lacks or names differently. */
namespace msl_float {
METAL_FUNC float rsqrt(float x) {
#ifdef MSL_GPU
  return msl_gpu::rsqrt(x);
#else
  return 1.0f / __builtin_sqrtf(x);
#endif
}
METAL_FUNC float fract(float x) {
  return __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f);
}
METAL_FUNC float sinpi(float x) {
  return float(__builtin_sin(3.14159265358979323846 * __builtin_fmod(double(x), 2.0)));
}
METAL_FUNC float cospi(float x) {
  return float(__builtin_cos(3.14159265358979323846 * __builtin_fmod(double(x), 2.0)));
}
METAL_FUNC float tanpi(float x) {
  return float(__builtin_tan(3.14159265358979323846 * __builtin_fmod(double(x), 1.0)));
}
METAL_FUNC float exp10(float x) {
  return float(__builtin_pow(10.0, double(x)));
}
METAL_FUNC float divide(float x, float y) {
  return x / y;
}
METAL_FUNC float max3(float x, float y, float z) {
  return __builtin_fmaxf(x, __builtin_fmaxf(y, z));
}
METAL_FUNC float min3(float x, float y, float z) {
  return __builtin_fminf(x, __builtin_fminf(y, z));
}
METAL_FUNC float median3(float x, float y, float z) {
  return __builtin_fmaxf(__builtin_fminf(x, y), __builtin_fminf(__builtin_fmaxf(x, y), z));
}
} // namespace msl_float

#define MSL_MATH1(NAME, CALL)                                           \
  namespace metal {                                                     \
  METAL_FUNC float NAME(float x) {                                      \
    return CALL(x);                                                     \
  }                                                                     \
  METAL_FUNC half NAME(half x) {                                        \
    return half(CALL(float(x)));                                        \
  }                                                                     \
  template <class T>                                                    \
  METAL_FUNC if_bfloat<T> NAME(T x) {                                   \
    return CALL(float(x));                                              \
  }                                                                     \
  MSL_MAP1(NAME)                                                        \
  namespace fast {                                                      \
  METAL_FUNC float NAME(float x) {                                      \
    return CALL(x);                                                     \
  }                                                                     \
  MSL_MAP1(NAME)                                                        \
  }                                                                     \
  namespace precise {                                                   \
  METAL_FUNC float NAME(float x) {                                      \
    return CALL(x);                                                     \
  }                                                                     \
  MSL_MAP1(NAME)                                                        \
  }                                                                     \
  }                                                                     \
  METAL_FUNC float __metal_##NAME(float x, int) {                       \
    return CALL(x);                                                     \
  }
MSL_MATH1(acos, __builtin_acosf)
MSL_MATH1(acosh, __builtin_acoshf)
MSL_MATH1(asin, __builtin_asinf)
MSL_MATH1(asinh, __builtin_asinhf)
MSL_MATH1(atan, __builtin_atanf)
MSL_MATH1(atanh, __builtin_atanhf)
MSL_MATH1(ceil, __builtin_ceilf)
MSL_MATH1(cos, __builtin_cosf)
MSL_MATH1(cosh, __builtin_coshf)
MSL_MATH1(cospi, msl_float::cospi)
MSL_MATH1(exp, __builtin_expf)
MSL_MATH1(exp2, __builtin_exp2f)
MSL_MATH1(exp10, msl_float::exp10)
MSL_MATH1(fabs, __builtin_fabsf)
MSL_MATH1(floor, __builtin_floorf)
MSL_MATH1(fract, msl_float::fract)
MSL_MATH1(log, __builtin_logf)
MSL_MATH1(log2, __builtin_log2f)
MSL_MATH1(log10, __builtin_log10f)
MSL_MATH1(rint, __builtin_rintf)
MSL_MATH1(round, __builtin_roundf)
MSL_MATH1(rsqrt, msl_float::rsqrt)
MSL_MATH1(sin, __builtin_sinf)
MSL_MATH1(sinh, __builtin_sinhf)
MSL_MATH1(sinpi, msl_float::sinpi)
MSL_MATH1(sqrt, __builtin_sqrtf)
MSL_MATH1(tan, __builtin_tanf)
MSL_MATH1(tanh, __builtin_tanhf)
MSL_MATH1(tanpi, msl_float::tanpi)
MSL_MATH1(trunc, __builtin_truncf)

#define MSL_MATH2(NAME, CALL)                                           \
  namespace metal {                                                     \
  METAL_FUNC float NAME(float x, float y) {                             \
    return CALL(x, y);                                                  \
  }                                                                     \
  METAL_FUNC half NAME(half x, half y) {                                \
    return half(CALL(float(x), float(y)));                              \
  }                                                                     \
  template <class T>                                                    \
  METAL_FUNC if_bfloat<T> NAME(T x, T y) {                              \
    return CALL(float(x), float(y));                                    \
  }                                                                     \
  MSL_MAP2(NAME)                                                        \
  namespace fast {                                                      \
  METAL_FUNC float NAME(float x, float y) {                             \
    return CALL(x, y);                                                  \
  }                                                                     \
  MSL_MAP2(NAME)                                                        \
  }                                                                     \
  namespace precise {                                                   \
  METAL_FUNC float NAME(float x, float y) {                             \
    return CALL(x, y);                                                  \
  }                                                                     \
  MSL_MAP2(NAME)                                                        \
  }                                                                     \
  }                                                                     \
  METAL_FUNC float __metal_##NAME(float x, float y, int = 0) {          \
    return CALL(x, y);                                                  \
  }
MSL_MATH2(atan2, __builtin_atan2f)
MSL_MATH2(copysign, __builtin_copysignf)
MSL_MATH2(divide, msl_float::divide)
MSL_MATH2(fdim, __builtin_fdimf)
MSL_MATH2(fmax, __builtin_fmaxf)
MSL_MATH2(fmin, __builtin_fminf)
MSL_MATH2(fmod, __builtin_fmodf)
MSL_MATH2(nextafter, __builtin_nextafterf)
MSL_MATH2(pow, __builtin_powf)
MSL_MATH2(powr, __builtin_powf)

#define MSL_MATH3(NAME, CALL)                                           \
  namespace metal {                                                     \
  METAL_FUNC float NAME(float x, float y, float z) {                    \
    return CALL(x, y, z);                                               \
  }                                                                     \
  METAL_FUNC half NAME(half x, half y, half z) {                        \
    return half(CALL(float(x), float(y), float(z)));                    \
  }                                                                     \
  template <class T>                                                    \
  METAL_FUNC if_bfloat<T> NAME(T x, T y, T z) {                         \
    return CALL(float(x), float(y), float(z));                          \
  }                                                                     \
  MSL_MAP3(NAME)                                                        \
  }                                                                     \
  METAL_FUNC float __metal_##NAME(float x, float y, float z, int = 0) { \
    return CALL(x, y, z);                                               \
  }
MSL_MATH3(fma, __builtin_fmaf)
MSL_MATH3(fmax3, msl_float::max3)
MSL_MATH3(fmin3, msl_float::min3)
MSL_MATH3(fmedian3, msl_float::median3)
MSL_MATH3(max3, msl_float::max3)
MSL_MATH3(min3, msl_float::min3)
MSL_MATH3(median3, msl_float::median3)

namespace metal {

METAL_FUNC float abs(float x) {
  return __builtin_fabsf(x);
}
METAL_FUNC half abs(half x) {
  return half(__builtin_fabsf(float(x)));
}
METAL_FUNC float ldexp(float x, int exponent) {
  return __builtin_ldexpf(x, exponent);
}
METAL_FUNC half ldexp(half x, int exponent) {
  return half(__builtin_ldexpf(float(x), exponent));
}
METAL_FUNC int ilogb(float x) {
  return __builtin_ilogbf(x);
}
METAL_FUNC float frexp(float x, int& exponent) {
  return __builtin_frexpf(x, &exponent);
}
METAL_FUNC float modf(float x, float& whole) {
  whole = __builtin_truncf(x);
  return __builtin_copysignf(x - whole, x);
}
METAL_FUNC float sincos(float x, float& cosine) {
  cosine = __builtin_cosf(x);
  return __builtin_sinf(x);
}
namespace fast {
using metal::abs;
using metal::clamp;
using metal::max;
using metal::min;
using metal::sincos;
} // namespace fast
namespace precise {
using metal::abs;
using metal::fma;
using metal::sincos;
} // namespace precise

} // namespace metal
