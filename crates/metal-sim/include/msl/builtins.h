// Builtins of Apple's compiler that some kernels call directly, such as MLX's bfloat16 support.
#pragma once

#define MSL_BUILTIN_SIMD1(NAME)                         \
  template <class T>                                    \
  METAL_FUNC T __metal_##NAME(T value) {                \
    return metal::NAME(value);                          \
  }
MSL_BUILTIN_SIMD1(simd_sum)
MSL_BUILTIN_SIMD1(simd_product)
MSL_BUILTIN_SIMD1(simd_max)
MSL_BUILTIN_SIMD1(simd_min)
MSL_BUILTIN_SIMD1(simd_or)
MSL_BUILTIN_SIMD1(simd_and)
MSL_BUILTIN_SIMD1(simd_xor)
MSL_BUILTIN_SIMD1(simd_broadcast_first)
MSL_BUILTIN_SIMD1(simd_prefix_inclusive_sum)
MSL_BUILTIN_SIMD1(simd_prefix_exclusive_sum)
MSL_BUILTIN_SIMD1(simd_prefix_inclusive_product)
MSL_BUILTIN_SIMD1(simd_prefix_exclusive_product)
#undef MSL_BUILTIN_SIMD1

#define MSL_BUILTIN_SIMD2(NAME)                         \
  template <class T>                                    \
  METAL_FUNC T __metal_##NAME(T value, ushort by) {     \
    return metal::NAME(value, by);                      \
  }
MSL_BUILTIN_SIMD2(simd_broadcast)
MSL_BUILTIN_SIMD2(simd_shuffle)
MSL_BUILTIN_SIMD2(simd_shuffle_xor)
MSL_BUILTIN_SIMD2(simd_shuffle_down)
MSL_BUILTIN_SIMD2(simd_shuffle_up)
MSL_BUILTIN_SIMD2(simd_shuffle_rotate_down)
MSL_BUILTIN_SIMD2(simd_shuffle_rotate_up)
#undef MSL_BUILTIN_SIMD2

template <class T>
METAL_FUNC T __metal_simd_shuffle_and_fill_down(T value, T fill, ushort delta, ushort modulo) {
  return metal::simd_shuffle_and_fill_down(value, fill, delta, modulo);
}
template <class T>
METAL_FUNC T __metal_simd_shuffle_and_fill_up(T value, T fill, ushort delta, ushort modulo) {
  return metal::simd_shuffle_and_fill_up(value, fill, delta, modulo);
}
METAL_FUNC float __metal_ldexp(float x, int exponent, int) {
  return __builtin_ldexpf(x, exponent);
}
METAL_FUNC float __metal_frexp(float x, int* exponent, int = 0) {
  return __builtin_frexpf(x, exponent);
}
METAL_FUNC ushort __metal_get_simdgroup_size(ushort) {
  return metal::simd_width;
}
METAL_FUNC ushort __metal_get_thread_index_in_simdgroup(ushort) {
  return ushort(msl_lane());
}

namespace metal {
/** Discards log messages. Its functions are static, since a log may be in any address space. */
struct os_log {
  constexpr os_log(const char*, const char*) {}
  template <class... A>
  static METAL_FUNC void log(A...) {}
  template <class... A>
  static METAL_FUNC void log_debug(A...) {}
  template <class... A>
  static METAL_FUNC void log_info(A...) {}
  template <class... A>
  static METAL_FUNC void log_error(A...) {}
};
} // namespace metal
