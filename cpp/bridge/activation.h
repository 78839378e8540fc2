// The C++ side of src/ffi/activation.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

enum class ActivationKind : uint8_t;

Handle activation(ActivationKind kind, const MlxArray& x);
Handle activation_of_two(ActivationKind kind, const MlxArray& a, const MlxArray& b);
Handle affine(const MlxArray& x, const MlxArray& scale, const MlxArray& shift);

} // namespace mlx_primitives::bridge
