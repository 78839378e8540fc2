#include "bridge/rope.h"

#include <limits>
#include <stdexcept>

#include "mlx-primitives/src/ffi/rope.rs.h"
#include "ops/rope.h"
#include "plan/rope.h"

namespace mlx_primitives::bridge {

namespace {

uint32_t narrow(size_t value) {
  if (value > std::numeric_limits<uint32_t>::max()) {
    throw std::invalid_argument("[plan] expected extents of 32 bits");
  }
  return static_cast<uint32_t>(value);
}

} // namespace

Handle rope(
    const MlxArray& x,
    int32_t dims,
    bool traditional,
    const float* base,
    float scale,
    const MlxArray& offset,
    const MlxArray* freqs) {
  return handle(mlx_primitives::rope(
      x, dims, traditional, optional(base), scale, offset, optional(freqs), here()));
}

Handle builtin_rope(
    const MlxArray& x,
    int32_t dims,
    bool traditional,
    const float* base,
    float scale,
    const MlxArray& offset,
    const MlxArray* freqs) {
  return handle(
      mx::fast::rope(x, dims, traditional, optional(base), scale, offset, optional(freqs), here()));
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
