// <metal_geometric>
#pragma once

namespace metal {

template <class V, class = if_vector<V>>
METAL_FUNC element_t<V> dot(V a, V b) {
  element_t<V> sum = a[0] * b[0];
  for (int i = 1; i < width_v<V>; i++) {
    sum += a[i] * b[i];
  }
  return sum;
}
template <class V, class = if_vector<V>>
METAL_FUNC element_t<V> dot(V a, element_t<V> b) {
  return dot(a, V(b));
}
template <class V, class = if_vector<V>>
METAL_FUNC element_t<V> dot(element_t<V> a, V b) {
  return dot(V(a), b);
}
template <class V, class = if_vector<V>>
METAL_FUNC element_t<V> length_squared(V v) {
  return dot(v, v);
}
template <class V, class = if_vector<V>>
METAL_FUNC element_t<V> length(V v) {
  return sqrt(dot(v, v));
}
template <class V, class = if_vector<V>>
METAL_FUNC element_t<V> distance(V a, V b) {
  return length(V(a - b));
}
template <class V, class = if_vector<V>>
METAL_FUNC element_t<V> distance_squared(V a, V b) {
  return length_squared(V(a - b));
}
template <class V, class = if_vector<V>>
METAL_FUNC V normalize(V v) {
  return v * rsqrt(dot(v, v));
}
template <class V, class = enable_if_t<width_v<V> == 3>>
METAL_FUNC V cross(V a, V b) {
  return V(a.yzx * b.zxy - a.zxy * b.yzx);
}

} // namespace metal
