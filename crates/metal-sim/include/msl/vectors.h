// Vectors, which are clang's ext_vector_type with swizzles, arithmetic and comparisons.
#pragma once

#define MSL_VECTOR(T)                                      \
  typedef T T##2 __attribute__((ext_vector_type(2)));      \
  typedef T T##3 __attribute__((ext_vector_type(3)));      \
  typedef T T##4 __attribute__((ext_vector_type(4)));
#define MSL_EACH_NUMBER(MACRO)                                                               \
  MACRO(char) MACRO(uchar) MACRO(short) MACRO(ushort) MACRO(int) MACRO(uint) MACRO(long)     \
  MACRO(ulong) MACRO(half) MACRO(bfloat) MACRO(float)
MSL_EACH_NUMBER(MSL_VECTOR)
/**
 * An element of a vector of bool. In the compiler's vectors of bool an element is one bit, which
 * cannot be named or stored.
 */
typedef unsigned _BitInt(8) msl_truth;
typedef msl_truth bool2 __attribute__((ext_vector_type(2)));
typedef msl_truth bool3 __attribute__((ext_vector_type(3)));
typedef msl_truth bool4 __attribute__((ext_vector_type(4)));

namespace metal {

template <class T, int N>
struct vector_of;
/** The number of elements of a vector and their type. Types that are not vectors have width 0. */
template <class V>
struct vector_traits {
  static constexpr int width = 0;
  typedef V element;
};

#define MSL_VECTOR_TRAITS(T, N)                \
  template <>                                  \
  struct vector_of<T, N> {                     \
    typedef T##N type;                         \
  };                                           \
  template <>                                  \
  struct vector_traits<T##N> {                 \
    static constexpr int width = N;            \
    typedef T element;                         \
  };
#define MSL_VECTOR_TRAITS_EACH(T) \
  MSL_VECTOR_TRAITS(T, 2) MSL_VECTOR_TRAITS(T, 3) MSL_VECTOR_TRAITS(T, 4)
MSL_EACH_NUMBER(MSL_VECTOR_TRAITS_EACH)
MSL_VECTOR_TRAITS_EACH(bool)
#undef MSL_VECTOR_TRAITS
#undef MSL_VECTOR_TRAITS_EACH

/** A vector type whose T and N templates can deduce, because the attribute is part of the type. */
template <class T, int N>
using vec = T __attribute__((ext_vector_type(N)));

/**
 * Like `vec`, but T may be `bool`, which the compiler's vectors do not support. T and N cannot be
 * deduced.
 */
template <class T, int N>
using msl_vec = conditional_t<is_same_v<T, bool>, msl_truth, T> __attribute__((ext_vector_type(N)));

template <class V>
constexpr bool is_vector_v = vector_traits<__remove_cv(V)>::width != 0;
template <class V>
using element_t = typename vector_traits<__remove_cv(V)>::element;
template <class V>
constexpr int width_v = vector_traits<__remove_cv(V)>::width;
/** The number of elements, under Apple's name; 0 for a scalar. */
template <class T>
struct vec_elements : integral_constant<ushort, width_v<T>> {};
template <class V>
using if_vector = enable_if_t<is_vector_v<V>>;

/** Whether a type is a struct such as `packed_float3`. */
template <class T>
constexpr bool is_packed_v = false;

/** Converts a number to another type. The compiler cannot convert between half and bfloat. */
template <class T, class A>
constexpr METAL_FUNC T msl_number(A a) {
  if constexpr (is_same_v<T, half> && is_same_v<A, bfloat>) {
    return T(float(a));
  } else if constexpr (is_same_v<T, bfloat> && is_same_v<A, half>) {
    return T(float(a));
  } else {
    return T(a);
  }
}
template <class V, class A>
constexpr METAL_FUNC void append(V& out, int& at, A a) {
  if constexpr (is_packed_v<A>) {
    for (int i = 0; i < 3; i++) {
      append(out, at, a[i]);
    }
  } else if constexpr (width_v<A> != 0) {
    for (int i = 0; i < width_v<A>; i++) {
      out[at++] = msl_number<element_t<V>>(element_t<A>(a[i]));
    }
  } else {
    out[at++] = msl_number<element_t<V>>(a);
  }
}

/** src/rewrite turns `float4(a, b, cd)` into this splat, conversion or concatenation. */
template <class V, class... A>
constexpr METAL_FUNC V make(A... a) {
  V out = {};
  int at = 0;
  (append(out, at, a), ...);
  if constexpr (sizeof...(A) == 1) {
    for (int i = 1; at == 1 && i < width_v<V>; i++) {
      out[i] = out[0];
    }
  }
  return out;
}

/** The rewritten form of `V(a...)`, where V may be a vector. */
template <class V, class... A>
constexpr METAL_FUNC V msl_convert(A... a) {
  if constexpr (is_vector_v<V>) {
    return make<__remove_cv(V)>(a...);
  } else if constexpr (sizeof...(A) == 1) {
    return msl_number<V>(a...);
  } else {
    return V(a...);
  }
}

/**
 * The rewritten form of `{a, b}` as an argument of a function. It converts to a vector or a struct.
 */
template <class A, class B>
struct msl_two {
  A a;
  B b;
  template <class V>
  constexpr METAL_FUNC operator V() const {
    if constexpr (is_vector_v<V>) {
      return make<V>(a, b);
    } else {
      return V{a, b};
    }
  }
};
template <class A, class B, class C>
struct msl_three {
  A a;
  B b;
  C c;
  template <class V>
  constexpr METAL_FUNC operator V() const {
    if constexpr (is_vector_v<V>) {
      return make<V>(a, b, c);
    } else {
      return V{a, b, c};
    }
  }
};
template <class A, class B>
constexpr METAL_FUNC msl_two<A, B> msl_braces(A a, B b) {
  return {a, b};
}
template <class A, class B, class C>
constexpr METAL_FUNC msl_three<A, B, C> msl_braces(A a, B b, C c) {
  return {a, b, c};
}

/**
 * The rewritten form of a cast: `(float4) v` is `msl_cast<float4>() ->* v`, which converts a vector
 * or splats a number.
 */
template <class V>
struct msl_cast;
template <class V, class U>
struct msl_casts;
template <class V>
struct msl_cast {
  template <class U>
  friend constexpr METAL_FUNC msl_casts<V, U> operator->*(msl_cast, msl_cast<U>) {
    return {};
  }
  template <class A>
  friend constexpr METAL_FUNC V operator->*(msl_cast, A a) {
    return msl_convert<V>(a);
  }
};
/** Two casts, of which the cast to U comes first. */
template <class V, class U>
struct msl_casts {
  template <class A>
  friend constexpr METAL_FUNC V operator->*(msl_casts, A a) {
    return msl_convert<V>(msl_convert<U>(a));
  }
};

} // namespace metal

// Packed vectors have the alignment of their elements. Packed vectors of two and four elements are
// clang vectors. Clang would pad a vector of three elements to four, so a packed vector of three
// elements is a struct.
#define MSL_PACKED_OPERATOR(T, OP)                                                 \
  friend METAL_FUNC T##3 operator OP(packed_##T##3 a, T##3 b) {                    \
    T##3 v = a;                                                                    \
    return v OP b;                                                                 \
  }                                                                                \
  friend METAL_FUNC T##3 operator OP(T##3 a, packed_##T##3 b) {                    \
    T##3 v = b;                                                                    \
    return a OP v;                                                                 \
  }                                                                                \
  friend METAL_FUNC T##3 operator OP(packed_##T##3 a, packed_##T##3 b) {           \
    T##3 v = b;                                                                    \
    return a OP v;                                                                 \
  }                                                                                \
  template <class B>                                                               \
  METAL_FUNC packed_##T##3& operator OP##=(B b) {                                  \
    return *this = *this OP b;                                                     \
  }
#define MSL_PACKED(T)                                                              \
  typedef T packed_##T##2 __attribute__((ext_vector_type(2), aligned(sizeof(T)))); \
  typedef T packed_##T##4 __attribute__((ext_vector_type(4), aligned(sizeof(T)))); \
  struct packed_##T##3 {                                                           \
    T x, y, z;                                                                     \
    packed_##T##3() = default;                                                     \
    METAL_FUNC packed_##T##3(T a, T b, T c) : x(a), y(b), z(c) {}                  \
    METAL_FUNC packed_##T##3(T##2 a, T b) : x(a[0]), y(a[1]), z(b) {}              \
    METAL_FUNC packed_##T##3(T a, T##2 b) : x(a), y(b[0]), z(b[1]) {}              \
    METAL_FUNC packed_##T##3(T##3 v) : x(v[0]), y(v[1]), z(v[2]) {}                \
    METAL_FUNC packed_##T##3(const packed_##T##3& o) : x(o.x), y(o.y), z(o.z) {}   \
    METAL_FUNC packed_##T##3& operator=(const packed_##T##3& o) {                  \
      x = o.x;                                                                     \
      y = o.y;                                                                     \
      z = o.z;                                                                     \
      return *this;                                                                \
    }                                                                              \
    METAL_FUNC operator T##3() const {                                             \
      return T##3{x, y, z};                                                        \
    }                                                                              \
    METAL_FUNC T& operator[](int i) {                                              \
      return (&x)[i];                                                              \
    }                                                                              \
    METAL_FUNC T operator[](int i) const {                                         \
      return (&x)[i];                                                              \
    }                                                                              \
    MSL_PACKED_OPERATOR(T, +)                                                      \
    MSL_PACKED_OPERATOR(T, -)                                                      \
    MSL_PACKED_OPERATOR(T, *)                                                      \
    MSL_PACKED_OPERATOR(T, /)                                                      \
  };                                                                               \
  template <>                                                                      \
  inline constexpr bool metal::is_packed_v<packed_##T##3> = true;
MSL_EACH_NUMBER(MSL_PACKED)
#undef MSL_PACKED
#undef MSL_PACKED_OPERATOR

namespace metal {

template <class T, size_t N>
struct array {
  T elements[N];
  constexpr METAL_FUNC T& operator[](size_t i) {
    return elements[i];
  }
  constexpr METAL_FUNC const T& operator[](size_t i) const {
    return elements[i];
  }
  static constexpr METAL_FUNC size_t size() {
    return N;
  }
};

template <class T>
using uniform = T;
template <class T>
constexpr METAL_FUNC T make_uniform(T x) {
  return x;
}

} // namespace metal
using metal::vec;

template <class To, class From>
constexpr METAL_FUNC To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs types of one size");
  return __builtin_bit_cast(To, from);
}
