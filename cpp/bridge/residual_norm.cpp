#include "bridge/residual_norm.h"

#include "mlx-primitives/src/ffi/residual_norm.rs.h"
#include "ops/residual_norm.h"
#include "plan/residual_norm.h"

namespace mlx_primitives::bridge {

ListHandle rms_norm_residual(
    const MlxArray& x, const MlxArray& residual, const MlxArray* weight, float eps) {
  return handle(mlx_primitives::rms_norm_residual(x, residual, optional(weight), eps, here()));
}

ListHandle layer_norm_residual(
    const MlxArray& x,
    const MlxArray& residual,
    const MlxArray* weight,
    const MlxArray* bias,
    float eps) {
  return handle(mlx_primitives::layer_norm_residual(
      x, residual, optional(weight), optional(bias), eps, here()));
}

LaunchPlan residual_norm_plan(
    uint64_t rows, uint32_t axis, rust::Str dtype, bool centered, uint32_t max_threads) {
  return to_bridge(plan_residual_norm(rows, axis, std::string(dtype), centered, max_threads));
}

} // namespace mlx_primitives::bridge
