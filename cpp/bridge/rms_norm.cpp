#include "bridge/rms_norm.h"

#include "mlx-primitives/src/ffi/rms_norm.rs.h"
#include "ops/rms_norm.h"
#include "plan/rms_norm.h"

namespace mlx_primitives::bridge {

Handle rms_norm(const MlxArray& x, const MlxArray* weight, float eps) {
  return handle(mlx_primitives::rms_norm(x, optional(weight), eps, here()));
}

Handle builtin_rms_norm(const MlxArray& x, const MlxArray* weight, float eps) {
  return handle(mx::fast::rms_norm(x, optional(weight), eps, here()));
}

LaunchPlan rms_norm_plan(
    uint64_t rows, uint32_t axis, rust::Str dtype, bool weighted, uint32_t max_threads) {
  return to_bridge(plan_rms_norm(rows, axis, std::string(dtype), weighted, max_threads));
}

} // namespace mlx_primitives::bridge
