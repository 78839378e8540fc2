// <metal_relational>
#pragma once

namespace metal {

#define MSL_CLASSIFY(NAME, BUILTIN)                             \
  METAL_FUNC bool NAME(float x) {                               \
    return BUILTIN(x);                                          \
  }                                                             \
  METAL_FUNC bool NAME(half x) {                                \
    return BUILTIN(float(x));                                   \
  }                                                             \
  template <class T>                                            \
  METAL_FUNC enable_if_t<is_same_v<T, bfloat>, bool> NAME(T x) { \
    return BUILTIN(float(x));                                   \
  }                                                             \
  template <class V, class = if_vector<V>>                      \
  METAL_FUNC typename vector_of<bool, width_v<V>>::type NAME(V v) { \
    typename vector_of<bool, width_v<V>>::type out = 0;         \
    for (int i = 0; i < width_v<V>; i++) {                      \
      out[i] = NAME(element_t<V>(v[i]));                        \
    }                                                           \
    return out;                                                 \
  }
MSL_CLASSIFY(isnan, __builtin_isnan)
MSL_CLASSIFY(isinf, __builtin_isinf)
MSL_CLASSIFY(isfinite, __builtin_isfinite)
MSL_CLASSIFY(isnormal, __builtin_isnormal)
MSL_CLASSIFY(signbit, __builtin_signbit)
#undef MSL_CLASSIFY

METAL_FUNC bool isordered(float x, float y) {
  return x == x && y == y;
}
METAL_FUNC bool isunordered(float x, float y) {
  return !isordered(x, y);
}

METAL_FUNC bool any(bool x) {
  return x;
}
METAL_FUNC bool all(bool x) {
  return x;
}
// any and all accept vectors of all types, since comparisons of clang's vectors give vectors of
// integers (0 or -1).
template <class V, class = if_vector<V>>
METAL_FUNC bool any(V v) {
  bool result = false;
  for (int i = 0; i < width_v<V>; i++) {
    result |= bool(v[i]);
  }
  return result;
}
template <class V, class = if_vector<V>>
METAL_FUNC bool all(V v) {
  bool result = true;
  for (int i = 0; i < width_v<V>; i++) {
    result &= bool(v[i]);
  }
  return result;
}

template <class T, class = enable_if_t<!is_vector_v<T>>>
METAL_FUNC T select(T no, T yes, bool condition) {
  return condition ? yes : no;
}
template <class V, class C, class = if_vector<V>>
METAL_FUNC V select(V no, V yes, C condition) {
  V out;
  for (int i = 0; i < width_v<V>; i++) {
    if constexpr (is_vector_v<C>) {
      out[i] = condition[i] ? yes[i] : no[i];
    } else {
      out[i] = condition ? yes[i] : no[i];
    }
  }
  return out;
}

} // namespace metal
