// Only with MSL_GPU, which selects compilation for a GPU: helpers for the entry points that the
// source rewriter adds for each kernel.
#pragma once

namespace msl {

template <class F>
struct Signature;
template <class... A>
struct Signature<void (*)(A...)> {
  template <int I>
  using argument = __type_pack_element<I, A...>;
};

/**
 * A pointer argument. All pointers are to device memory here. The name of the entry point tells
 * which arguments are in constant memory.
 */
template <class A>
using Bound = typename Pointee<A>::type __attribute__((opencl_global)) *;

template <class A>
METAL_FUNC A argument(Bound<A> from) {
  typedef typename Pointee<A>::type T;
  if constexpr (__is_reference(A)) {
    return *(T*)from;
  } else {
    return (T*)from;
  }
}

template <class A, class F>
METAL_FUNC A position(F along) {
  if constexpr (metal::is_vector_v<A>) {
    A value;
    for (int i = 0; i < metal::width_v<A>; i++) {
      value[i] = metal::element_t<A>(along(i));
    }
    return value;
  } else {
    return A(along(0));
  }
}

/** A built-in value, given by its row in the rewriter's table of built-in values. */
template <int ROW, class A>
METAL_FUNC A value() {
  static_assert(ROW <= 13, "a value that no GPU target has yet");
  if constexpr (ROW == 0) {
    return position<A>(msl_global_id);
  } else if constexpr (ROW == 1) {
    return position<A>(msl_group_id);
  } else if constexpr (ROW == 2) {
    return position<A>(msl_local_id);
  } else if constexpr (ROW == 3 || ROW == 6) {
    return position<A>(msl_local_size);
  } else if constexpr (ROW == 4) {
    return position<A>(msl_global_size);
  } else if constexpr (ROW == 5) {
    return position<A>(msl_num_groups);
  } else if constexpr (ROW == 7) {
    return A(msl_linear_id());
  } else if constexpr (ROW == 8) {
    return A(msl_lane());
  } else if constexpr (ROW == 9) {
    return A(msl_simd());
  } else if constexpr (ROW == 10 || ROW == 11) {
    return A(msl_simds());
  } else {
    return A(metal::simd_width);
  }
}

} // namespace msl
