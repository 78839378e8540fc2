#include "bridge/layer_norm.h"

#include "mlx-primitives/src/ffi/layer_norm.rs.h"
#include "ops/layer_norm.h"
#include "plan/layer_norm.h"

namespace mlx_primitives::bridge {

Handle layer_norm(const MlxArray& x, const MlxArray* weight, const MlxArray* bias, float eps) {
  return handle(mlx_primitives::layer_norm(x, optional(weight), optional(bias), eps, here()));
}

Handle builtin_layer_norm(
    const MlxArray& x, const MlxArray* weight, const MlxArray* bias, float eps) {
  return handle(mx::fast::layer_norm(x, optional(weight), optional(bias), eps, here()));
}

LaunchPlan layer_norm_plan(uint64_t rows, uint32_t axis, rust::Str dtype, uint32_t max_threads) {
  return to_bridge(plan_layer_norm(rows, axis, std::string(dtype), max_threads));
}

} // namespace mlx_primitives::bridge
