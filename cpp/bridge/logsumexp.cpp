#include "bridge/logsumexp.h"

#include "mlx-primitives/src/ffi/logsumexp.rs.h"
#include "ops/logsumexp.h"
#include "plan/logsumexp.h"

namespace mlx_primitives::bridge {

Handle logsumexp(const MlxArray& x, bool keepdims) {
  return handle(mlx_primitives::logsumexp(x, keepdims, here()));
}

Handle log_softmax(const MlxArray& x) {
  return handle(mlx_primitives::log_softmax(x, here()));
}

LaunchPlan logsumexp_plan(
    uint64_t rows, uint32_t axis, rust::Str dtype, bool subtract, uint32_t max_threads) {
  return to_bridge(plan_logsumexp(rows, axis, std::string(dtype), subtract, max_threads));
}

} // namespace mlx_primitives::bridge
