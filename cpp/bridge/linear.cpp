#include "bridge/linear.h"

#include "mlx-primitives/src/ffi/linear.rs.h"
#include "ops/linear.h"

namespace mlx_primitives::bridge {

Handle linear(
    const MlxArray& x,
    const MlxArray& w,
    const MlxArray* bias,
    ActivationKind activation,
    const MlxArray* residual) {
  auto kind = static_cast<mlx_primitives::ActivationKind>(activation);
  return handle(mlx_primitives::linear(x, w, optional(bias), kind, optional(residual), here()));
}

Handle matmul(const MlxArray& a, const MlxArray& b, bool transposed) {
  return handle(mlx_primitives::matmul(a, b, transposed, here()));
}

} // namespace mlx_primitives::bridge
