// <metal_quadgroup>: functions for quadgroups. A quadgroup is four consecutive lanes of a SIMD
// group.
#pragma once

namespace metal {

#define MSL_QUAD_REDUCTION(NAME)                                                    \
  template <class T, class = if_simd<T>>                                            \
  METAL_FUNC T quad_##NAME(T value) {                                               \
    Lanes<T> lanes(value);                                                          \
    return reduce_lanes<T, Combine_##NAME>(                                         \
        lanes.slots, lanes.active & (0xfu << (lanes.me & ~3u)));                    \
  }
MSL_QUAD_REDUCTION(sum)
MSL_QUAD_REDUCTION(product)
MSL_QUAD_REDUCTION(max)
MSL_QUAD_REDUCTION(min)
MSL_QUAD_REDUCTION(and)
MSL_QUAD_REDUCTION(or)
MSL_QUAD_REDUCTION(xor)
#undef MSL_QUAD_REDUCTION

template <class T, class = if_simd<T>>
METAL_FUNC T quad_broadcast(T value, ushort lane) {
  Lanes<T> lanes(value);
  return lanes.at((lanes.me & ~3u) + (lane & 3u));
}
template <class T, class = if_simd<T>>
METAL_FUNC T quad_shuffle(T value, ushort lane) {
  return quad_broadcast(value, lane);
}
template <class T, class = if_simd<T>>
METAL_FUNC T quad_shuffle_xor(T value, ushort mask) {
  Lanes<T> lanes(value);
  return lanes.at(lanes.me ^ (mask & 3u));
}
template <class T, class = if_simd<T>>
METAL_FUNC T quad_shuffle_down(T value, ushort delta) {
  Lanes<T> lanes(value);
  return (lanes.me & 3u) + delta < 4 ? lanes.at(lanes.me + delta) : value;
}
template <class T, class = if_simd<T>>
METAL_FUNC T quad_shuffle_up(T value, ushort delta) {
  Lanes<T> lanes(value);
  return (lanes.me & 3u) >= delta ? lanes.at(lanes.me - delta) : value;
}

} // namespace metal
