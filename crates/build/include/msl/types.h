// Vectors, packed vectors, and conversions between types of the same size.
#pragma once

namespace msl {

template <bool CONDITION, typename T = void>
struct enable_if {};
template <typename T>
struct enable_if<true, T> {
  typedef T type;
};
template <typename A, typename B>
struct is_same {
  static constexpr bool value = false;
};
template <typename A>
struct is_same<A, A> {
  static constexpr bool value = true;
};

/**
 * The bytes of an argument that the launch passes by value but the kernel reads through a pointer.
 */
template <unsigned N>
struct alignas(16) Bytes {
  unsigned char at[N];
};

} // namespace msl

namespace metal {

template <bool CONDITION, typename A, typename B>
struct conditional {
  typedef A type;
};
template <typename A, typename B>
struct conditional<false, A, B> {
  typedef B type;
};
template <bool CONDITION, typename A, typename B>
using conditional_t = typename conditional<CONDITION, A, B>::type;
template <bool CONDITION, typename T = void>
using enable_if_t = typename ::msl::enable_if<CONDITION, T>::type;
template <typename A, typename B>
constexpr bool is_same_v = ::msl::is_same<A, B>::value;

template <typename T, int N>
struct vec;

/**
 * N elements that need only the alignment of one element. If the address is aligned to the whole
 * vector, a single load or store moves all of them.
 */
template <typename T, int N>
struct packed_vec {
  T at[N];

  packed_vec() = default;
  explicit METAL_FUNC packed_vec(T all) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      at[i] = all;
    }
  }
  METAL_FUNC packed_vec(vec<T, N> from);
  template <typename... Rest, typename = enable_if_t<sizeof...(Rest) == N - 2>>
  METAL_FUNC packed_vec(T first, T second, Rest... rest) : at{first, second, T(rest)...} {}
  METAL_FUNC T& operator[](uint i) {
    return at[i];
  }
  METAL_FUNC const T& operator[](uint i) const {
    return at[i];
  }
};

#define MSL_VECTOR_COMMON(N)                        \
  typedef T element;                                \
  vec() = default;                                  \
  METAL_FUNC vec(T all) {                           \
    _Pragma("unroll") for (int i = 0; i < N; i++) { \
      (*this)[i] = all;                             \
    }                                               \
  }                                                 \
  METAL_FUNC vec(packed_vec<T, N> from) {           \
    _Pragma("unroll") for (int i = 0; i < N; i++) { \
      (*this)[i] = from[i];                         \
    }                                               \
  }                                                 \
  template <typename U>                             \
  explicit METAL_FUNC vec(vec<U, N> from) {         \
    _Pragma("unroll") for (int i = 0; i < N; i++) { \
      (*this)[i] = T(from[i]);                      \
    }                                               \
  }                                                 \
  template <typename U>                             \
  explicit METAL_FUNC vec(packed_vec<U, N> from) {  \
    _Pragma("unroll") for (int i = 0; i < N; i++) { \
      (*this)[i] = T(from[i]);                      \
    }                                               \
  }                                                 \
  METAL_FUNC T& operator[](uint i) {                \
    return (&x)[i];                                 \
  }                                                 \
  METAL_FUNC const T& operator[](uint i) const {    \
    return (&x)[i];                                 \
  }                                                 \
  template <int... AT>                              \
  METAL_FUNC auto swizzled() const {                \
    return vec<T, sizeof...(AT)>((*this)[AT]...);   \
  }

template <typename T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  METAL_FUNC vec(T x_, T y_) : x(x_), y(y_) {}
  MSL_VECTOR_COMMON(2)
};

template <typename T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  METAL_FUNC vec(T x_, T y_, T z_) : x(x_), y(y_), z(z_) {}
  METAL_FUNC vec(vec<T, 2> xy, T z_) : x(xy.x), y(xy.y), z(z_) {}
  MSL_VECTOR_COMMON(3)
};

template <typename T>
struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  METAL_FUNC vec(T x_, T y_, T z_, T w_) : x(x_), y(y_), z(z_), w(w_) {}
  METAL_FUNC vec(vec<T, 2> xy, vec<T, 2> zw) : x(xy.x), y(xy.y), z(zw.x), w(zw.y) {}
  METAL_FUNC vec(vec<T, 3> xyz, T w_) : x(xyz.x), y(xyz.y), z(xyz.z), w(w_) {}
  MSL_VECTOR_COMMON(4)
};

#undef MSL_VECTOR_COMMON

template <typename T, int N>
METAL_FUNC packed_vec<T, N>::packed_vec(vec<T, N> from) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    at[i] = from[i];
  }
}

#define MSL_VECTOR_OPERATOR(OP)                                                       \
  template <typename T, int N>                                                        \
  METAL_FUNC vec<T, N> operator OP(vec<T, N> a, vec<T, N> b) {                        \
    vec<T, N> result;                                                                 \
    _Pragma("unroll") for (int i = 0; i < N; i++) {                                   \
      result[i] = a[i] OP b[i];                                                       \
    }                                                                                 \
    return result;                                                                    \
  }                                                                                   \
  template <typename T, int N>                                                        \
  METAL_FUNC vec<T, N> operator OP(vec<T, N> a, typename vec<T, N>::element b) {      \
    return a OP vec<T, N>(b);                                                         \
  }                                                                                   \
  template <typename T, int N>                                                        \
  METAL_FUNC vec<T, N> operator OP(typename vec<T, N>::element a, vec<T, N> b) {      \
    return vec<T, N>(a) OP b;                                                         \
  }                                                                                   \
  template <typename T, int N>                                                        \
  METAL_FUNC vec<T, N>& operator OP##=(vec<T, N>& a, vec<T, N> b) {                   \
    return a = a OP b;                                                                \
  }                                                                                   \
  template <typename T, int N>                                                        \
  METAL_FUNC vec<T, N>& operator OP##=(vec<T, N>& a, typename vec<T, N>::element b) { \
    return a = a OP vec<T, N>(b);                                                     \
  }

MSL_VECTOR_OPERATOR(+)
MSL_VECTOR_OPERATOR(-)
MSL_VECTOR_OPERATOR(*)
MSL_VECTOR_OPERATOR(/)
MSL_VECTOR_OPERATOR(%)
MSL_VECTOR_OPERATOR(&)
MSL_VECTOR_OPERATOR(|)
MSL_VECTOR_OPERATOR(^)
MSL_VECTOR_OPERATOR(<<)
MSL_VECTOR_OPERATOR(>>)

#undef MSL_VECTOR_OPERATOR

template <typename T, int N>
METAL_FUNC vec<T, N> operator-(vec<T, N> a) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    a[i] = -a[i];
  }
  return a;
}

#define MSL_PACKED(TYPE)                        \
  typedef packed_vec<TYPE, 2> packed_##TYPE##2; \
  typedef packed_vec<TYPE, 3> packed_##TYPE##3; \
  typedef packed_vec<TYPE, 4> packed_##TYPE##4;

typedef signed char msl_char;
MSL_PACKED(uchar)
MSL_PACKED(short)
MSL_PACKED(ushort)
MSL_PACKED(int)
MSL_PACKED(uint)
MSL_PACKED(half)
MSL_PACKED(bfloat)
MSL_PACKED(float)
typedef packed_vec<msl_char, 2> packed_char2;
typedef packed_vec<msl_char, 3> packed_char3;
typedef packed_vec<msl_char, 4> packed_char4;

#undef MSL_PACKED

template <typename To, typename From>
METAL_FUNC To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type converts between types of one size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

} // namespace metal
