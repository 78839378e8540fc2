// Integer functions and the limits of number types.
#pragma once

namespace metal {

template <typename T>
METAL_FUNC T clamp(T x, T low, T high) {
  return x < low ? low : high < x ? high : x;
}
METAL_FUNC uint popcount(uint x) {
  return __popc(x);
}
METAL_FUNC uint clz(uint x) {
  return __clz(x);
}
METAL_FUNC uint ctz(uint x) {
  return x == 0 ? 32 : __ffs(x) - 1;
}
METAL_FUNC uint reverse_bits(uint x) {
  return __brev(x);
}
METAL_FUNC int mulhi(int a, int b) {
  return __mulhi(a, b);
}
METAL_FUNC uint mulhi(uint a, uint b) {
  return __umulhi(a, b);
}
template <typename T>
METAL_FUNC T rotate(T x, T by) {
  const uint bits = 8 * sizeof(T);
  return x << (by % bits) | x >> ((bits - by % bits) % bits);
}
template <typename T>
METAL_FUNC T extract_bits(T x, uint offset, uint bits) {
  return bits == 0 ? T(0) : T(x << (8 * sizeof(T) - bits - offset)) >> (8 * sizeof(T) - bits);
}

template <typename T>
struct numeric_limits;
template <>
struct numeric_limits<float> {
  static METAL_FUNC float infinity() {
    return INFINITY;
  }
  static METAL_FUNC float quiet_NaN() {
    return NAN;
  }
  static constexpr METAL_FUNC float max() {
    return FLT_MAX;
  }
  static constexpr METAL_FUNC float lowest() {
    return -FLT_MAX;
  }
  static constexpr METAL_FUNC float min() {
    return FLT_MIN;
  }
};
template <>
struct numeric_limits<int> {
  static constexpr METAL_FUNC int max() {
    return INT_MAX;
  }
  static constexpr METAL_FUNC int min() {
    return INT_MIN;
  }
  static constexpr METAL_FUNC int lowest() {
    return INT_MIN;
  }
};
template <>
struct numeric_limits<uint> {
  static constexpr METAL_FUNC uint max() {
    return UINT_MAX;
  }
  static constexpr METAL_FUNC uint min() {
    return 0;
  }
  static constexpr METAL_FUNC uint lowest() {
    return 0;
  }
};

} // namespace metal
