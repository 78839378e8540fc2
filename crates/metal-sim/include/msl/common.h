// <metal_common>: min, max, clamp, mix, step and similar functions. The scalar functions are
// overloads and not templates, so that a call with mixed types is ambiguous, as in MSL.
#pragma once

namespace metal {

#define MSL_ORDER(T)                                            \
  constexpr METAL_FUNC T max(T a, T b) {                        \
    return a < b ? b : a;                                       \
  }                                                             \
  constexpr METAL_FUNC T min(T a, T b) {                        \
    return b < a ? b : a;                                       \
  }
MSL_ORDER(char)
MSL_ORDER(int8_t)
MSL_ORDER(uchar)
MSL_ORDER(short)
MSL_ORDER(ushort)
MSL_ORDER(int)
MSL_ORDER(uint)
MSL_ORDER(long)
MSL_ORDER(ulong)
#undef MSL_ORDER

// If one argument is NaN, the hardware returns the other argument.
#define MSL_ORDER_FLOAT(T)                                      \
  METAL_FUNC T max(T a, T b) {                                  \
    return T(__builtin_fmaxf(float(a), float(b)));              \
  }                                                             \
  METAL_FUNC T min(T a, T b) {                                  \
    return T(__builtin_fminf(float(a), float(b)));              \
  }                                                             \
  METAL_FUNC T saturate(T x) {                                  \
    return min(max(x, T(0)), T(1));                             \
  }                                                             \
  METAL_FUNC T mix(T a, T b, T t) {                             \
    return a + (b - a) * t;                                     \
  }                                                             \
  METAL_FUNC T step(T edge, T x) {                              \
    return x < edge ? T(0) : T(1);                              \
  }                                                             \
  METAL_FUNC T sign(T x) {                                      \
    return x > T(0) ? T(1) : x < T(0) ? T(-1) : x == x ? x : T(0); \
  }                                                             \
  METAL_FUNC T smoothstep(T low, T high, T x) {                 \
    T t = saturate((x - low) / (high - low));                   \
    return t * t * (T(3) - T(2) * t);                           \
  }
MSL_ORDER_FLOAT(float)
MSL_ORDER_FLOAT(half)
#undef MSL_ORDER_FLOAT

/** MSL has no bfloat functions: arguments are converted to float, and results stay float. */
template <class T>
using if_bfloat = enable_if_t<is_same_v<T, bfloat>, float>;
template <class T>
METAL_FUNC if_bfloat<T> max(T a, T b) {
  return max(float(a), float(b));
}
template <class T>
METAL_FUNC if_bfloat<T> min(T a, T b) {
  return min(float(a), float(b));
}

#define MSL_CLAMP(T)                                            \
  METAL_FUNC T clamp(T x, T low, T high) {                      \
    return min(max(x, low), high);                              \
  }
MSL_CLAMP(char)
MSL_CLAMP(uchar)
MSL_CLAMP(short)
MSL_CLAMP(ushort)
MSL_CLAMP(int)
MSL_CLAMP(uint)
MSL_CLAMP(long)
MSL_CLAMP(ulong)
MSL_CLAMP(float)
MSL_CLAMP(half)
#undef MSL_CLAMP

// The overloads for vectors call the scalar function for each element.
#define MSL_MAP1(NAME)                                                  \
  template <class V, class = if_vector<V>>                              \
  METAL_FUNC V NAME(V a) {                                              \
    V out;                                                              \
    for (int i = 0; i < width_v<V>; i++) {                              \
      out[i] = NAME(element_t<V>(a[i]));                                \
    }                                                                   \
    return out;                                                         \
  }
#define MSL_MAP2(NAME)                                                  \
  template <class V, class = if_vector<V>>                              \
  METAL_FUNC V NAME(V a, V b) {                                         \
    V out;                                                              \
    for (int i = 0; i < width_v<V>; i++) {                              \
      out[i] = NAME(element_t<V>(a[i]), element_t<V>(b[i]));            \
    }                                                                   \
    return out;                                                         \
  }                                                                     \
  template <class V, class = if_vector<V>>                              \
  METAL_FUNC V NAME(V a, element_t<V> b) {                              \
    return NAME(a, V(b));                                               \
  }                                                                     \
  template <class V, class = if_vector<V>>                              \
  METAL_FUNC V NAME(element_t<V> a, V b) {                              \
    return NAME(V(a), b);                                               \
  }
#define MSL_MAP3(NAME)                                                  \
  template <class V, class = if_vector<V>>                              \
  METAL_FUNC V NAME(V a, V b, V c) {                                    \
    V out;                                                              \
    for (int i = 0; i < width_v<V>; i++) {                              \
      out[i] = NAME(element_t<V>(a[i]), element_t<V>(b[i]), element_t<V>(c[i])); \
    }                                                                   \
    return out;                                                         \
  }
MSL_MAP2(max)
MSL_MAP2(min)
MSL_MAP3(clamp)
MSL_MAP3(mix)
MSL_MAP3(smoothstep)
MSL_MAP2(step)
MSL_MAP1(sign)
MSL_MAP1(saturate)
template <class V, class = if_vector<V>>
METAL_FUNC V clamp(V x, element_t<V> low, element_t<V> high) {
  return clamp(x, V(low), V(high));
}
template <class V, class = if_vector<V>>
METAL_FUNC V mix(V a, V b, element_t<V> t) {
  return mix(a, b, V(t));
}
template <class V, class = if_vector<V>>
METAL_FUNC V smoothstep(element_t<V> low, element_t<V> high, V x) {
  return smoothstep(V(low), V(high), x);
}

} // namespace metal
