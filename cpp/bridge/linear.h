// The C++ side of src/ffi/linear.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

enum class ActivationKind : uint8_t;

Handle linear(
    const MlxArray& x,
    const MlxArray& w,
    const MlxArray* bias,
    ActivationKind activation,
    const MlxArray* residual);
Handle matmul(const MlxArray& a, const MlxArray& b, bool transposed);

} // namespace mlx_primitives::bridge
