#pragma once

// All that differs between the patch versions of MLX 0.32 from 0.32.3 on, whose C++ interface
// changes with them. Each difference is asked of the declarations, since a number says nothing of
// later versions.

#include <concepts>
#include <optional>
#include <string>
#include <utility>

#include "mlx/fast.h"
#include "mlx/mlx.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * New memory for an array: from 0.32.4 on an owner, before a buffer that only an array frees. So
 * nothing may throw between its allocation and the array.
 */
using Memory = decltype(mx::allocator::malloc(0));

template <typename M>
mx::allocator::Buffer buffer_of(const M& memory) {
  if constexpr (requires { memory.buffer(); }) {
    return memory.buffer();
  } else {
    return memory;
  }
}

/**
 * Whether MLX's allocator owns an array's memory, so that an op may write into it. Before 0.32.4
 * MLX takes this for granted; this crate makes no arrays of memory that belongs to others.
 */
template <typename Data>
bool is_owned(const Data& data) {
  if constexpr (requires { data.is_owned(); }) {
    return data.is_owned();
  } else {
    return true;
  }
}

/** An argument for a parameter of exactly this type: a bool does not become an int, nor an int a
 * bool. */
template <typename T>
struct Exactly {
  T value;

  template <typename To>
    requires std::same_as<To, T>
  operator To() const {
    return value;
  }
};

/**
 * Calls scaled_dot_product_attention with the last arguments that this MLX takes: the first of
 * these forms that compiles. 0.32.3 has `force_fused` before the stream. 0.32.5 has a sliding
 * window too, but no release shows yet where it is and which type it has. This is a template, so
 * that the compiler discards the forms that MLX lacks.
 */
template <typename Stream>
mx::array built_in_attention(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    float scale,
    const std::string& mode,
    const std::optional<mx::array>& mask,
    const std::optional<mx::array>& sinks,
    Stream s) {
  constexpr Exactly<bool> fused{false};
  constexpr Exactly<int> window{-1};
  auto attend = [&](auto... last) -> decltype(mx::fast::scaled_dot_product_attention(
                                      q, k, v, scale, mode, mask, sinks, last...)) {
    return mx::fast::scaled_dot_product_attention(q, k, v, scale, mode, mask, sinks, last...);
  };
  if constexpr (requires { attend(fused, s); }) {
    return attend(fused, s);
  } else if constexpr (requires { attend(fused, std::nullopt, s); }) {
    return attend(fused, std::nullopt, s);
  } else if constexpr (requires { attend(std::nullopt, fused, s); }) {
    return attend(std::nullopt, fused, s);
  } else if constexpr (requires { attend(fused, window, s); }) {
    return attend(fused, window, s);
  } else {
    return attend(window, fused, s);
  }
}

} // namespace mlx_primitives
