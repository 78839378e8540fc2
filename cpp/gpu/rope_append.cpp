#include "ops/rope_append.h"

#include <cmath>

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"
#include "plan/rope_append.h"

namespace mlx_primitives {

namespace {

/** A multiplier as the type that features are multiplied in holds it. */
float rounded(float value, mx::Dtype dtype) {
  if (dtype == mx::float16) {
    return static_cast<float>(static_cast<mx::float16_t>(value));
  }
  if (dtype == mx::bfloat16) {
    return static_cast<float>(static_cast<mx::bfloat16_t>(value));
  }
  return value;
}

} // namespace

void RopeAppend::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& state = inputs[0];
  auto& qkv = inputs[1];
  auto& offset = inputs[2];
  auto& slots = inputs[3];
  auto& out = outputs[0];
  for (auto& input : inputs) {
    require_row_contiguous("rope_append", input);
  }
  donate_or_allocate(state, out);
  auto dtype = mx::type_to_name(state);
  if (out.size() > 0 && out.buffer().ptr() != state.buffer().ptr()) {
    StateCopyParams copy{};
    auto fitted = pipeline(stream(), "rope_append", [&](uint32_t max_threads) {
      return plan_state_copy(copy, out.size(), dtype, max_threads);
    });
    encode(stream(), fitted, {state}, {out}, copy);
  }
  if (out.size() == 0 || qkv.size() == 0) {
    return;
  }
  bool explicit_freqs = inputs.size() > 4;

  RopeAppendParams params{};
  params.batch = state.shape(0);
  params.heads = layout_.heads;
  params.kv_heads = layout_.kv_heads;
  params.length = qkv.shape(1);
  params.features = layout_.head_dim;
  params.capacity = layout_.capacity;
  params.rows = state.shape(1);
  params.pairs = dims_ / 2;
  params.columns = rope_columns(params.features, params.pairs, /* in_place */ false);
  params.first_head = params.length <= QUERY_POSITIONS ? 0 : params.heads;
  params.offset_stride = offset.size() > 1 ? 1 : 0;
  params.slot_stride = slots.size() > 1 ? 1 : 0;
  params.slots_follow = slots.id() == offset.id() ? 1 : 0;
  params.scale = scale_;
  params.log2_base = explicit_freqs ? 0.0f : std::log2(base_);
  params.multiplier = rounded(multiplier_, state.dtype());

  auto fitted = pipeline(stream(), "rope_append", [&](uint32_t max_threads) {
    return plan_rope_append(params, dtype, traditional_, explicit_freqs, max_threads);
  });
  auto& freqs = explicit_freqs ? inputs[4] : offset; // something has to be bound
  encode(stream(), fitted, {out, qkv, offset, slots, freqs}, {out}, params);
}

} // namespace mlx_primitives
