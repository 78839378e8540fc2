// Helpers that every `cpu_call` uses to hand arrays to a Rust kernel.
#pragma once

#include "mlx-primitives/src/ffi/kernels.rs.h"
#include "mlx-primitives/src/ffi/mod.rs.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

inline const uint8_t* bytes(const mx::array& a) {
  return a.data<uint8_t>();
}

inline uint8_t* bytes(mx::array& a) {
  return a.data<uint8_t>();
}

inline bridge::Dtype kernel_dtype(const mx::array& a) {
  return static_cast<bridge::Dtype>(a.dtype().val());
}

} // namespace mlx_primitives
