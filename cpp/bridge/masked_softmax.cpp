#include "bridge/masked_softmax.h"

#include "mlx-primitives/src/ffi/masked_softmax.rs.h"
#include "ops/masked_softmax.h"
#include "plan/masked_softmax.h"

namespace mlx_primitives::bridge {

Handle masked_softmax(
    const MlxArray& x,
    float scale,
    const MlxArray* mask,
    bool causal,
    bool sliding,
    int32_t window) {
  auto keys = sliding ? std::optional<int>(window) : std::nullopt;
  return handle(mlx_primitives::masked_softmax(x, scale, optional(mask), causal, keys, here()));
}

LaunchPlan masked_softmax_plan(
    uint64_t rows, uint32_t keys, rust::Str dtype, bool gradient, uint32_t max_threads) {
  const char* op = gradient ? "masked_softmax_grad" : "masked_softmax";
  return to_bridge(plan_masked_softmax(op, rows, keys, std::string(dtype), max_threads));
}

} // namespace mlx_primitives::bridge
