// Functions of floats. Functions in `precise` and functions without a namespace call CUDA's
// accurate versions.
#pragma once

#include "msl/types.h"

namespace metal {

#define MSL_UNARY(NAME, CALL)      \
  METAL_FUNC float NAME(float x) { \
    return CALL(x);                \
  }

namespace precise {
MSL_UNARY(acos, ::acosf)
MSL_UNARY(acosh, ::acoshf)
MSL_UNARY(asin, ::asinf)
MSL_UNARY(asinh, ::asinhf)
MSL_UNARY(atan, ::atanf)
MSL_UNARY(atanh, ::atanhf)
MSL_UNARY(ceil, ::ceilf)
MSL_UNARY(cos, ::cosf)
MSL_UNARY(cosh, ::coshf)
MSL_UNARY(cospi, ::cospif)
MSL_UNARY(exp, ::expf)
MSL_UNARY(exp10, ::exp10f)
MSL_UNARY(exp2, ::exp2f)
MSL_UNARY(fabs, ::fabsf)
MSL_UNARY(floor, ::floorf)
MSL_UNARY(log, ::logf)
MSL_UNARY(log10, ::log10f)
MSL_UNARY(log2, ::log2f)
MSL_UNARY(rint, ::rintf)
MSL_UNARY(round, ::roundf)
MSL_UNARY(rsqrt, ::rsqrtf)
MSL_UNARY(sin, ::sinf)
MSL_UNARY(sinh, ::sinhf)
MSL_UNARY(sinpi, ::sinpif)
MSL_UNARY(sqrt, ::sqrtf)
MSL_UNARY(tan, ::tanf)
MSL_UNARY(tanh, ::tanhf)
MSL_UNARY(trunc, ::truncf)
METAL_FUNC float atan2(float y, float x) {
  return ::atan2f(y, x);
}
METAL_FUNC float divide(float a, float b) {
  return __fdiv_rn(a, b);
}
METAL_FUNC float fmod(float a, float b) {
  return ::fmodf(a, b);
}
METAL_FUNC float pow(float a, float b) {
  return ::powf(a, b);
}
METAL_FUNC float powr(float a, float b) {
  return ::powf(a, b);
}
} // namespace precise

namespace fast {
MSL_UNARY(cos, ::__cosf)
MSL_UNARY(exp, ::__expf)
MSL_UNARY(exp2, ::exp2f)
MSL_UNARY(log, ::__logf)
MSL_UNARY(log10, ::__log10f)
MSL_UNARY(log2, ::__log2f)
MSL_UNARY(rsqrt, ::rsqrtf)
MSL_UNARY(sin, ::__sinf)
MSL_UNARY(sqrt, ::sqrtf)
MSL_UNARY(tan, ::__tanf)
MSL_UNARY(tanh, ::tanhf)
METAL_FUNC float divide(float a, float b) {
  return __fdividef(a, b);
}
METAL_FUNC float pow(float a, float b) {
  return ::__powf(a, b);
}
METAL_FUNC float max(float a, float b) {
  return ::fmaxf(a, b);
}
METAL_FUNC float min(float a, float b) {
  return ::fminf(a, b);
}
METAL_FUNC float clamp(float x, float low, float high) {
  return ::fminf(::fmaxf(x, low), high);
}
} // namespace fast

#undef MSL_UNARY

// CUDA defines most functions with these names in the global namespace.
METAL_FUNC float fract(float x) {
  return ::fminf(x - ::floorf(x), 0.99999994f);
}
METAL_FUNC float powr(float a, float b) {
  return ::powf(a, b);
}
METAL_FUNC float divide(float a, float b) {
  return a / b;
}
METAL_FUNC float sign(float x) {
  return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? x : 0.0f;
}
METAL_FUNC float mix(float a, float b, float t) {
  return a + (b - a) * t;
}
METAL_FUNC float saturate(float x) {
  return __saturatef(x);
}
METAL_FUNC float step(float edge, float x) {
  return x < edge ? 0.0f : 1.0f;
}
METAL_FUNC float smoothstep(float from, float to, float x) {
  const float t = __saturatef((x - from) / (to - from));
  return t * t * (3.0f - 2.0f * t);
}

template <typename T>
METAL_FUNC T select(T no, T yes, bool condition) {
  return condition ? yes : no;
}

template <typename T, int N>
METAL_FUNC T dot(vec<T, N> a, vec<T, N> b) {
  T sum = a[0] * b[0];
#pragma unroll
  for (int i = 1; i < N; i++) {
    sum += a[i] * b[i];
  }
  return sum;
}
template <int N>
METAL_FUNC float length(vec<float, N> x) {
  return ::sqrtf(dot(x, x));
}
template <int N>
METAL_FUNC vec<float, N> normalize(vec<float, N> x) {
  return x * ::rsqrtf(dot(x, x));
}

} // namespace metal
