#pragma once

// All code that depends on the patch version of MLX 0.32, from 0.32.3 on. MLX's C++ interface
// differs between these versions. The templates test MLX's declarations instead of a version
// number, so they also work with later versions.

#include <concepts>
#include <optional>
#include <string>
#include <utility>

#include "mlx/fast.h"
#include "mlx/mlx.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * Newly allocated memory for an array. In 0.32.4 and later, this object frees the memory. In
 * earlier versions, only an array frees it, so no code may throw before an array owns the memory.
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
 * Whether MLX's allocator owns an array's memory. Only then may an op overwrite it. Before 0.32.4,
 * MLX assumes that it owns all memory, and this crate makes no arrays of other memory.
 */
template <typename Data>
bool is_owned(const Data& data) {
  if constexpr (requires { data.is_owned(); }) {
    return data.is_owned();
  } else {
    return true;
  }
}

/**
 * An argument that converts only to the type T. So a bool never becomes an int, nor an int a bool.
 */
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
 * Calls MLX's scaled_dot_product_attention. Its last arguments depend on the version, so this uses
 * the first form below that compiles. In 0.32.3, `force_fused` comes before the stream. 0.32.5 also
 * has a sliding window. No release shows its position and type yet, so several forms try them. This
 * is a template, so that the compiler discards the forms that MLX lacks.
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
