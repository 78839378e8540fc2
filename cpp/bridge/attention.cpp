#include "bridge/attention.h"

#include <stdexcept>

#include "mlx-primitives/src/ffi/attention.rs.h"
#include "ops/attention.h"
#include "plan/attention.h"

namespace mlx_primitives::bridge {

namespace {

mlx_primitives::AttentionRules to_rules(const AttentionRules& rules) {
  return {rules.scale, rules.causal, rules.window, rules.soft_cap};
}

QuantizedRows to_rows(const ArrayList& parts) {
  if (parts.size() != 3) {
    throw std::invalid_argument("[attention] expected packed numbers, scales and biases");
  }
  return {parts[0], parts[1], parts[2]};
}

} // namespace

Handle attention(
    const MlxArray& q,
    const MlxArray& k,
    const MlxArray& v,
    const AttentionRules& rules,
    const MlxArray* mask,
    const MlxArray* sinks) {
  return handle(
      mlx_primitives::attention(q, k, v, to_rules(rules), optional(mask), optional(sinks), here()));
}

Handle attention_quantized(
    const MlxArray& q,
    const ArrayList& k,
    const ArrayList& v,
    int32_t bits,
    int32_t group_size,
    const AttentionRules& rules,
    const MlxArray* mask,
    const MlxArray* sinks) {
  return handle(mlx_primitives::attention_quantized(
      q,
      to_rows(k),
      to_rows(v),
      bits,
      group_size,
      to_rules(rules),
      optional(mask),
      optional(sinks),
      here()));
}

LaunchPlan attention_plan(
    const AttentionShape& shape,
    bool joining,
    uint32_t bits,
    rust::Str dtype_,
    uint32_t max_threads) {
  AttentionParams params{};
  params.batch = shape.batch;
  params.kv_heads = shape.kv_heads;
  params.group = shape.group;
  params.queries = shape.queries;
  params.keys = params.end = shape.keys;
  params.dim = shape.dim;
  plan_attention_splits(params);
  std::string dtype(dtype_);
  if (joining) {
    Launch launch = plan_attention_combine(params, dtype, max_threads);
    launch.grid[0] = params.splits > 1 ? launch.grid[0] : 0;
    return to_bridge(launch);
  }
  uint32_t itemsize = dtype == "float32" ? 4 : 2;
  return to_bridge(plan_attention(params, bits, dtype, itemsize, max_threads));
}

} // namespace mlx_primitives::bridge
