// Launch plans, as src/ffi.rs declares them: the ones that eval_gpu makes, without a GPU.
#include <limits>
#include <stdexcept>

#include "bridge.h"
#include "mlx-primitives/src/ffi.rs.h"
#include "plan/rms_norm.h"
#include "plan/rope.h"
#include "plan/softmax.h"

namespace mlx_primitives::bridge {

namespace {

LaunchPlan to_bridge(const Launch& launch) {
  return LaunchPlan{launch.kernel, launch.grid, launch.group, launch.threadgroup_bytes};
}

uint32_t narrow(size_t value) {
  if (value > std::numeric_limits<uint32_t>::max()) {
    throw std::invalid_argument("[plan] expected extents of 32 bits");
  }
  return static_cast<uint32_t>(value);
}

} // namespace

LaunchPlan rms_norm_plan(
    uint64_t rows, uint32_t axis, rust::Str dtype, bool weighted, uint32_t max_threads) {
  return to_bridge(plan_rms_norm(rows, axis, std::string(dtype), weighted, max_threads));
}

LaunchPlan softmax_plan(uint64_t rows, uint32_t axis, rust::Str dtype, uint32_t max_threads) {
  return to_bridge(plan_softmax(rows, axis, std::string(dtype), max_threads));
}

LaunchPlan rope_plan(
    const RopeCall& call,
    rust::Str dtype,
    bool explicit_freqs,
    bool in_place,
    uint32_t max_threads) {
  if (call.dims > call.head_dim) {
    throw std::invalid_argument("[rope] expected dims within the features");
  }
  RopeParams params{};
  params.batch = narrow(call.batch);
  params.heads = narrow(call.heads);
  params.length = narrow(call.seq);
  params.features = narrow(call.head_dim);
  params.pairs = params.features ? narrow(call.dims) / 2 : 0;
  params.columns = rope_columns(params.features, params.pairs, in_place);
  return to_bridge(
      plan_rope(params, std::string(dtype), call.traditional, explicit_freqs, max_threads));
}

} // namespace mlx_primitives::bridge
