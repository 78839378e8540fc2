// <metal_type_traits>, implemented with compiler intrinsics.
#pragma once

namespace metal {

template <class T, T V>
struct integral_constant {
  static constexpr T value = V;
  typedef T value_type;
  typedef integral_constant type;
  constexpr operator T() const {
    return V;
  }
};

template <bool B>
using bool_constant = integral_constant<bool, B>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <bool B, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  typedef T type;
};
template <bool B, class T = void>
using enable_if_t = typename enable_if<B, T>::type;

template <bool B, class Yes, class No>
struct conditional {
  typedef Yes type;
};
template <class Yes, class No>
struct conditional<false, Yes, No> {
  typedef No type;
};
template <bool B, class Yes, class No>
using conditional_t = typename conditional<B, Yes, No>::type;

#define MSL_TYPE_ALIAS(NAME, ...)                \
  template <class T>                             \
  struct NAME {                                  \
    typedef __VA_ARGS__ type;                    \
  };                                             \
  template <class T>                             \
  using NAME##_t = typename NAME<T>::type;
MSL_TYPE_ALIAS(remove_cv, __remove_cv(T))
MSL_TYPE_ALIAS(remove_const, __remove_const(T))
MSL_TYPE_ALIAS(remove_volatile, __remove_volatile(T))
MSL_TYPE_ALIAS(remove_reference, __remove_reference_t(T))
MSL_TYPE_ALIAS(remove_pointer, __remove_pointer(T))
MSL_TYPE_ALIAS(remove_extent, __remove_extent(T))
MSL_TYPE_ALIAS(decay, __decay(T))
MSL_TYPE_ALIAS(make_signed, __make_signed(T))
MSL_TYPE_ALIAS(make_unsigned, __make_unsigned(T))
MSL_TYPE_ALIAS(underlying_type, __underlying_type(T))
MSL_TYPE_ALIAS(remove_addrspace, T)
#undef MSL_TYPE_ALIAS

#define MSL_TRAIT(NAME, ...)                        \
  template <class T>                                \
  constexpr bool NAME##_v = __VA_ARGS__;            \
  template <class T>                                \
  struct NAME : bool_constant<NAME##_v<T>> {};
#define MSL_TRAIT2(NAME, ...)                       \
  template <class A, class B>                       \
  constexpr bool NAME##_v = __VA_ARGS__;            \
  template <class A, class B>                       \
  struct NAME : bool_constant<NAME##_v<A, B>> {};
MSL_TRAIT2(is_same, __is_same(A, B))
MSL_TRAIT2(is_base_of, __is_base_of(A, B))
MSL_TRAIT2(is_convertible, __is_convertible(A, B))
MSL_TRAIT2(is_constructible, __is_constructible(A, B))
MSL_TRAIT(is_void, __is_void(T))
MSL_TRAIT(is_integral, __is_integral(T))
MSL_TRAIT(
    is_floating_point,
    __is_same(__remove_cv(T), float) || __is_same(__remove_cv(T), half) ||
        __is_same(__remove_cv(T), bfloat))
MSL_TRAIT(is_arithmetic, is_integral_v<T> || is_floating_point_v<T>)
MSL_TRAIT(is_scalar, is_arithmetic_v<T> || __is_enum(T) || __is_pointer(T))
MSL_TRAIT(is_unsigned, __is_integral(T) && __is_unsigned(T))
MSL_TRAIT(is_signed, is_floating_point_v<T> || (__is_integral(T) && __is_signed(T)))
MSL_TRAIT(is_enum, __is_enum(T))
MSL_TRAIT(is_class, __is_class(T))
MSL_TRAIT(is_union, __is_union(T))
MSL_TRAIT(is_array, __is_array(T))
MSL_TRAIT(is_pointer, __is_pointer(T))
MSL_TRAIT(is_reference, __is_reference(T))
MSL_TRAIT(is_const, __is_const(T))
MSL_TRAIT(is_trivially_copyable, __is_trivially_copyable(T))
#undef MSL_TRAIT
#undef MSL_TRAIT2

template <class... T>
struct _disjunction : bool_constant<(T::value || ...)> {};
template <class... T>
struct _conjunction : bool_constant<(T::value && ...)> {};

template <class T>
T&& declval() noexcept;

} // namespace metal
