// <metal_atomic>. All threads of a kernel are fibers of one host thread, so a plain copy is atomic.
// Each function reports its access to the executor, the host code that runs kernels, since atomic
// accesses do not race with each other.
#pragma once

namespace metal {

enum memory_order {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst,
};

METAL_FUNC void atomic_thread_fence(
    mem_flags flags, memory_order order, thread_scope scope = thread_scope_device) {
#ifndef MSL_GPU
  msl_fence(uint(flags), uint(order), uint(scope));
#endif
}

template <class T>
struct atomic {
  typedef T value_type;
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;

/**
 * The whole pointer type is a template parameter, so that any address space and `volatile` are
 * accepted.
 */
template <class Pointer>
using atomic_value_t =
    typename remove_cv_t<remove_reference_t<decltype(*declval<Pointer>())>>::value_type;

template <class Pointer>
METAL_FUNC atomic_value_t<Pointer> atomic_read(Pointer object, uint kind) {
  atomic_value_t<Pointer> value;
  msl_atomic((const void*)object, sizeof(value), kind);
  msl_copy(&value, (const void*)object, sizeof(value));
  return value;
}

template <class Pointer>
METAL_FUNC atomic_value_t<Pointer> atomic_load_explicit(Pointer object, memory_order) {
  return atomic_read(object, 1);
}
template <class Pointer>
METAL_FUNC void atomic_store_explicit(
    Pointer object, atomic_value_t<Pointer> value, memory_order) {
  msl_atomic((const void*)object, sizeof(value), 2);
  msl_copy((void*)object, &value, sizeof(value));
}

#define MSL_ATOMIC(NAME, EXPRESSION)                                        \
  template <class Pointer>                                                  \
  METAL_FUNC atomic_value_t<Pointer> atomic_##NAME##_explicit(              \
      Pointer object, atomic_value_t<Pointer> with, memory_order) {         \
    const atomic_value_t<Pointer> old = atomic_read(object, 3);             \
    const atomic_value_t<Pointer> now = EXPRESSION;                         \
    msl_copy((void*)object, &now, sizeof(now));                             \
    return old;                                                             \
  }
MSL_ATOMIC(exchange, with)
MSL_ATOMIC(fetch_add, old + with)
MSL_ATOMIC(fetch_sub, old - with)
MSL_ATOMIC(fetch_max, old < with ? with : old)
MSL_ATOMIC(fetch_min, with < old ? with : old)
MSL_ATOMIC(fetch_and, old & with)
MSL_ATOMIC(fetch_or, old | with)
MSL_ATOMIC(fetch_xor, old ^ with)
#undef MSL_ATOMIC

template <class Pointer>
METAL_FUNC bool atomic_compare_exchange_weak_explicit(
    Pointer object,
    atomic_value_t<Pointer>* expected,
    atomic_value_t<Pointer> desired,
    memory_order,
    memory_order) {
  const atomic_value_t<Pointer> old = atomic_read(object, 3);
  if (__builtin_memcmp(&old, expected, sizeof(old)) == 0) {
    msl_copy((void*)object, &desired, sizeof(desired));
    return true;
  }
  *expected = old;
  return false;
}

} // namespace metal
