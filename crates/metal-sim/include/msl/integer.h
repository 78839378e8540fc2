// <metal_integer>
#pragma once

namespace metal {

template <class T>
using if_integer = enable_if_t<is_integral_v<T>>;
template <class T>
constexpr int bits_v = int(sizeof(T)) * 8;

#define MSL_INTEGER1(NAME, EXPRESSION)              \
  template <class T, class = if_integer<T>>         \
  METAL_FUNC T NAME(T x) {                          \
    typedef make_unsigned_t<T> U;                   \
    (void)sizeof(U);                                \
    return T(EXPRESSION);                           \
  }                                                 \
  template <class V, class = if_vector<V>, class = void> \
  METAL_FUNC V NAME(V v) {                          \
    V out;                                          \
    for (int i = 0; i < width_v<V>; i++) {          \
      out[i] = NAME(element_t<V>(v[i]));                       \
    }                                               \
    return out;                                     \
  }
MSL_INTEGER1(abs, x < T(0) ? T(0) - x : x)
MSL_INTEGER1(popcount, __builtin_popcountl(ulong(U(x))))
MSL_INTEGER1(clz, x == T(0) ? bits_v<T> : __builtin_clzl(ulong(U(x))) - (64 - bits_v<T>))
MSL_INTEGER1(ctz, x == T(0) ? bits_v<T> : __builtin_ctzl(ulong(U(x))))
MSL_INTEGER1(reverse_bits, __builtin_bitreverse64(ulong(U(x))) >> (64 - bits_v<T>))
#undef MSL_INTEGER1

template <class T, class = if_integer<T>>
METAL_FUNC make_unsigned_t<T> absdiff(T x, T y) {
  typedef make_unsigned_t<T> U;
  return x < y ? U(U(y) - U(x)) : U(U(x) - U(y));
}
template <class T, class = if_integer<T>>
METAL_FUNC T addsat(T x, T y) {
  T sum;
  if (!__builtin_add_overflow(x, y, &sum)) {
    return sum;
  }
  return y < T(0) ? numeric_limits<T>::min() : numeric_limits<T>::max();
}
template <class T, class = if_integer<T>>
METAL_FUNC T subsat(T x, T y) {
  T difference;
  if (!__builtin_sub_overflow(x, y, &difference)) {
    return difference;
  }
  return is_unsigned_v<T> || y > T(0) ? numeric_limits<T>::min() : numeric_limits<T>::max();
}
template <class T, class = if_integer<T>>
METAL_FUNC T hadd(T x, T y) {
  return T((__int128(x) + __int128(y)) >> 1);
}
template <class T, class = if_integer<T>>
METAL_FUNC T rhadd(T x, T y) {
  return T((__int128(x) + __int128(y) + 1) >> 1);
}
template <class T, class = if_integer<T>>
METAL_FUNC T mulhi(T x, T y) {
  return T((__int128(x) * __int128(y)) >> bits_v<T>);
}
template <class T, class = if_integer<T>>
METAL_FUNC T madhi(T x, T y, T z) {
  return T(mulhi(x, y) + z);
}
METAL_FUNC int mul24(int x, int y) {
  return ((x << 8) >> 8) * ((y << 8) >> 8);
}
METAL_FUNC uint mul24(uint x, uint y) {
  return (x & 0xffffff) * (y & 0xffffff);
}
template <class T, class = if_integer<T>>
METAL_FUNC T rotate(T x, T by) {
  typedef make_unsigned_t<T> U;
  const int shift = int(U(by) % U(bits_v<T>));
  return shift == 0 ? x : T(U(U(x) << shift) | U(U(x) >> (bits_v<T> - shift)));
}
template <class T, class = if_integer<T>>
METAL_FUNC T extract_bits(T x, uint offset, uint count) {
  if (count == 0) {
    return T(0);
  }
  typedef make_unsigned_t<T> U;
  const U top = U(U(x) << (bits_v<T> - int(offset) - int(count)));
  return T(T(top) >> (bits_v<T> - int(count)));
}
template <class T, class = if_integer<T>>
METAL_FUNC T insert_bits(T base, T insert, uint offset, uint count) {
  typedef make_unsigned_t<T> U;
  const U ones = count >= uint(bits_v<T>) ? U(~U(0)) : U((U(1) << count) - 1);
  const U mask = U(ones << offset);
  return T((U(base) & U(~mask)) | (U(U(insert) << offset) & mask));
}

} // namespace metal
