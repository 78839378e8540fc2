// Only with MSL_GPU, which selects compilation for a GPU: the functions of <metal_simdgroup> that
// are one or two hardware instructions.
#pragma once

namespace metal {

constexpr uint simd_width = 32;

/** The type to which a value is converted when lanes exchange it. */
template <class T>
struct Carried {
  typedef conditional_t<
      is_floating_point_v<T>,
      conditional_t<is_same_v<T, half>, half, float>,
      conditional_t<is_signed_v<T>, int, uint>>
      type;
};

#define MSL_SIMD(NAME, CALL, PARAMETER, ARGUMENT)                      \
  template <class T>                                                   \
  METAL_FUNC T NAME(T value PARAMETER) {                               \
    if constexpr (is_vector_v<T>) {                                    \
      T out;                                                           \
      for (int i = 0; i < width_v<T>; i++) {                           \
        out[i] = NAME(element_t<T>(value[i]) ARGUMENT);                \
      }                                                                \
      return out;                                                      \
    } else {                                                           \
      return T(CALL(typename Carried<T>::type(value) ARGUMENT));       \
    }                                                                  \
  }
#define MSL_BY , ushort by
#define MSL_TO(LANE) , LANE
MSL_SIMD(simd_sum, msl_sum, , )
MSL_SIMD(simd_max, msl_max, , )
MSL_SIMD(simd_min, msl_min, , )
MSL_SIMD(simd_broadcast_first, msl_first, , )
MSL_SIMD(simd_broadcast, msl_from, MSL_BY, MSL_TO(by))
MSL_SIMD(simd_shuffle, msl_shuffled, MSL_BY, MSL_TO(by))
#undef MSL_SIMD
#undef MSL_BY
#undef MSL_TO

// Apple's hardware has an instruction for each of these functions, but Mesa compiles a shuffle to
// four instructions. To get the right cost, this code uses a broadcast, which is one instruction.
#define MSL_SHUFFLE(NAME, LANE)                      \
  template <class T>                                 \
  METAL_FUNC T NAME(T value, ushort by) {            \
    return simd_broadcast(value, ushort(LANE));      \
  }
MSL_SHUFFLE(simd_shuffle_xor, msl_lane() ^ by)
MSL_SHUFFLE(simd_shuffle_down, msl_lane() + by)
MSL_SHUFFLE(simd_shuffle_up, msl_lane() - by)
#undef MSL_SHUFFLE

METAL_FUNC bool simd_any(bool vote) {
  return msl_any(vote) != 0;
}
METAL_FUNC bool simd_all(bool vote) {
  return msl_all(vote) != 0;
}
METAL_FUNC bool simd_is_first() {
  return msl_lane() == 0;
}

} // namespace metal
