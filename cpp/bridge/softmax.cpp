#include "bridge/softmax.h"

#include "mlx-primitives/src/ffi/softmax.rs.h"
#include "ops/softmax.h"
#include "plan/softmax.h"

namespace mlx_primitives::bridge {

Handle softmax(const MlxArray& x) {
  return handle(mlx_primitives::softmax(x, here()));
}

Handle builtin_softmax(const MlxArray& x, bool precise) {
  return handle(mx::softmax(x, -1, precise, here()));
}

LaunchPlan softmax_plan(uint64_t rows, uint32_t axis, rust::Str dtype, uint32_t max_threads) {
  return to_bridge(plan_softmax(rows, axis, std::string(dtype), max_threads));
}

} // namespace mlx_primitives::bridge
