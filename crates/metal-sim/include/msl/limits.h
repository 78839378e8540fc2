// <metal_limits>
#pragma once

namespace metal {

/** The base that kernels specialize for types that they define, as in Apple's headers. */
template <class T>
struct _numeric_limits_impl {
  static constexpr bool is_specialized = false;
};
template <class T>
struct numeric_limits : _numeric_limits_impl<T> {};

#define MSL_INTEGER_LIMITS(T, LOW, HIGH, DIGITS)                \
  template <>                                                   \
  struct _numeric_limits_impl<T> {                              \
    static constexpr bool is_specialized = true;                \
    static constexpr bool is_integer = true;                    \
    static constexpr bool is_exact = true;                      \
    static constexpr bool is_signed = T(-1) < T(0);             \
    static constexpr bool has_infinity = false;                 \
    static constexpr bool has_quiet_NaN = false;                \
    static constexpr int digits = DIGITS;                       \
    static constexpr T min() {                                  \
      return LOW;                                               \
    }                                                           \
    static constexpr T lowest() {                               \
      return LOW;                                               \
    }                                                           \
    static constexpr T max() {                                  \
      return HIGH;                                              \
    }                                                           \
    static constexpr T infinity() {                             \
      return T();                                               \
    }                                                           \
  };
MSL_INTEGER_LIMITS(bool, false, true, 1)
MSL_INTEGER_LIMITS(char, CHAR_MIN, CHAR_MAX, 7)
MSL_INTEGER_LIMITS(int8_t, SCHAR_MIN, SCHAR_MAX, 7)
MSL_INTEGER_LIMITS(uchar, 0, UCHAR_MAX, 8)
MSL_INTEGER_LIMITS(short, SHRT_MIN, SHRT_MAX, 15)
MSL_INTEGER_LIMITS(ushort, 0, USHRT_MAX, 16)
MSL_INTEGER_LIMITS(int, INT_MIN, INT_MAX, 31)
MSL_INTEGER_LIMITS(uint, 0, UINT_MAX, 32)
MSL_INTEGER_LIMITS(long, LONG_MIN, LONG_MAX, 63)
MSL_INTEGER_LIMITS(ulong, 0, ULONG_MAX, 64)
#undef MSL_INTEGER_LIMITS

#define MSL_FLOAT_LIMITS(T, LEAST, HIGH, STEP, DIGITS)          \
  template <>                                                   \
  struct _numeric_limits_impl<T> {                              \
    static constexpr bool is_specialized = true;                \
    static constexpr bool is_integer = false;                   \
    static constexpr bool is_exact = false;                     \
    static constexpr bool is_signed = true;                     \
    static constexpr bool has_infinity = true;                  \
    static constexpr bool has_quiet_NaN = true;                 \
    static constexpr int digits = DIGITS;                       \
    static constexpr T min() {                                  \
      return T(LEAST);                                          \
    }                                                           \
    static constexpr T lowest() {                               \
      return T(-HIGH);                                          \
    }                                                           \
    static constexpr T max() {                                  \
      return T(HIGH);                                           \
    }                                                           \
    static constexpr T epsilon() {                              \
      return T(STEP);                                           \
    }                                                           \
    static constexpr T infinity() {                             \
      return T(__builtin_inff());                               \
    }                                                           \
    static constexpr T quiet_NaN() {                            \
      return T(__builtin_nanf(""));                             \
    }                                                           \
  };
MSL_FLOAT_LIMITS(float, FLT_MIN, FLT_MAX, FLT_EPSILON, 24)
MSL_FLOAT_LIMITS(half, 0x1p-14f, 65504.0f, 0x1p-10f, 11)
MSL_FLOAT_LIMITS(bfloat, 0x1p-126f, 0x1.fep127f, 0x1p-7f, 8)
#undef MSL_FLOAT_LIMITS

/** The parts of a number's bits, under the name that Apple's headers use. */
template <class T>
struct _fp_encoding_traits;
#define MSL_ENCODING(T, BITS, SIGN, INFINITE)     \
  template <>                                     \
  struct _fp_encoding_traits<T> {                 \
    typedef BITS encoding_type;                   \
    static constexpr BITS sign_mask = SIGN;       \
    static constexpr BITS inf_mask = INFINITE;    \
    static constexpr BITS exponent_mask = INFINITE; \
  };
MSL_ENCODING(float, uint, 0x80000000u, 0x7f800000u)
MSL_ENCODING(half, ushort, 0x8000u, 0x7c00u)
MSL_ENCODING(bfloat, ushort, 0x8000u, 0x7f80u)
#undef MSL_ENCODING

} // namespace metal
