#include "bridge/cross_entropy.h"

#include "mlx-primitives/src/ffi/cross_entropy.rs.h"
#include "ops/cross_entropy.h"
#include "plan/cross_entropy.h"

namespace mlx_primitives::bridge {

Handle cross_entropy(
    const MlxArray& x, const MlxArray& targets, float smoothing, bool ignores, int32_t ignored) {
  auto without = ignores ? std::optional<int>(ignored) : std::nullopt;
  return handle(mlx_primitives::cross_entropy(x, targets, smoothing, without, here()));
}

LaunchPlan cross_entropy_plan(
    uint64_t rows, uint32_t classes, rust::Str dtype, bool gradient, uint32_t max_threads) {
  auto plan = gradient ? plan_cross_entropy_grad : plan_cross_entropy;
  return to_bridge(plan(rows, classes, std::string(dtype), max_threads));
}

} // namespace mlx_primitives::bridge
