// 32-bit atomics with relaxed memory order, the only memory order that Metal has.
#pragma once

namespace metal {

enum memory_order { memory_order_relaxed };

template <typename T>
struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;

template <typename T>
METAL_FUNC T atomic_load_explicit(const volatile atomic<T>* at, memory_order) {
  return *(const volatile T*)&at->value;
}
template <typename T>
METAL_FUNC void atomic_store_explicit(volatile atomic<T>* at, T value, memory_order) {
  *(volatile T*)&at->value = value;
}

#define MSL_ATOMIC(NAME, CALL)                                       \
  template <typename T>                                              \
  METAL_FUNC T NAME(volatile atomic<T>* at, T value, memory_order) { \
    return CALL((T*)&at->value, value);                              \
  }

MSL_ATOMIC(atomic_exchange_explicit, ::atomicExch)
MSL_ATOMIC(atomic_fetch_add_explicit, ::atomicAdd)
MSL_ATOMIC(atomic_fetch_and_explicit, ::atomicAnd)
MSL_ATOMIC(atomic_fetch_max_explicit, ::atomicMax)
MSL_ATOMIC(atomic_fetch_min_explicit, ::atomicMin)
MSL_ATOMIC(atomic_fetch_or_explicit, ::atomicOr)
MSL_ATOMIC(atomic_fetch_xor_explicit, ::atomicXor)

#undef MSL_ATOMIC

template <typename T>
METAL_FUNC T atomic_fetch_sub_explicit(volatile atomic<T>* at, T value, memory_order) {
  return ::atomicAdd((T*)&at->value, T(-value));
}
template <typename T>
METAL_FUNC bool atomic_compare_exchange_weak_explicit(
    volatile atomic<T>* at, T* expected, T desired, memory_order, memory_order) {
  const T found = ::atomicCAS((T*)&at->value, *expected, desired);
  const bool equal = found == *expected;
  *expected = found;
  return equal;
}

} // namespace metal
