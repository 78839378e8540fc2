// One node for a RopeAppend and an Attention: a step of self-attention over a cache.
#include "ops/rope_append.h"

#include "../../metal/rope_append.h"

namespace mlx_primitives {

namespace {

constexpr auto rope_append_attention_op = "rope_append_attention";

/** A view with the given strides, in elements, of an array that may not be evaluated yet. */
mx::array view(
    const mx::array& x, const mx::Shape& shape, const mx::Strides& strides, int64_t start) {
  mx::array part(shape, x.dtype(), nullptr, {});
  size_t span = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    span += static_cast<size_t>(std::max(shape[i], 1) - 1) * static_cast<size_t>(strides[i]);
  }
  part.copy_shared_buffer(x, strides, {false, false, false}, span, start);
  return part;
}

} // namespace

Arrays rope_append_attention(
    const mx::array& state,
    const mx::array& qkv,
    const KvLayout& layout,
    const Rotation& rotation,
    const mx::array& offset,
    const std::optional<mx::array>& slots,
    int len,
    const AttentionRules& rules,
    const std::optional<mx::array>& mask,
    const std::optional<mx::array>& sinks,
    mx::StreamOrDevice s_) {
  auto s = mx::to_stream(s_);
  auto inputs = append_inputs(state, qkv, layout, rotation, offset, slots, s);
  int batch = state.shape(0);
  int time = qkv.shape(1);
  auto& [heads, kv_heads, head_dim, capacity] = layout;
  if (time > static_cast<int>(QUERY_POSITIONS)) {
    refuse(
        rope_append_attention_op,
        "expected a step of at most ",
        QUERY_POSITIONS,
        " positions, got ",
        time);
  }
  if (len < 1 || len > capacity) {
    refuse(
        rope_append_attention_op,
        "expected a length within 1 to the capacity ",
        capacity,
        ", got ",
        len);
  }
  mx::Shape keys = {batch, kv_heads, len, head_dim};
  check_attention({batch, heads, time, head_dim}, keys, keys, rules);
  auto dtype = state.dtype();
  push_mask_and_sinks(inputs, mask, sinks, {batch, heads, time, len}, dtype, s);
  auto primitive = std::make_shared<RopeAppendAttention>(
      s, layout, rotation, len, rules, mask.has_value(), sinks.has_value());
  auto shapes = primitive->output_shapes(inputs);
  return mx::array::make_arrays(
      std::move(shapes), {dtype, dtype}, std::move(primitive), std::move(inputs));
}

std::vector<mx::Shape> RopeAppendAttention::output_shapes(const Arrays& inputs) {
  auto& qkv = inputs[1];
  return {inputs[0].shape(), {qkv.shape(0), qkv.shape(1), layout_.heads * layout_.head_dim}};
}

Arrays RopeAppendAttention::attended(const Arrays& inputs, const mx::array& state) const {
  auto& [heads, kv_heads, head_dim, capacity] = layout_;
  int batch = state.shape(0);
  int time = inputs[1].shape(1);
  int64_t row = head_dim;
  int64_t text = int64_t{state.shape(1)} * row;
  int64_t area = int64_t{heads} * static_cast<int>(QUERY_POSITIONS) * row;
  int64_t head = capacity * row;
  mx::Shape stored = {batch, kv_heads, len_, head_dim};
  Arrays all = {
      view(state, {batch, heads, time, head_dim}, {text, time * row, row, 1}, 0),
      view(state, stored, {text, head, row, 1}, area),
      view(state, stored, {text, head, row, 1}, area + kv_heads * head)};
  all.insert(all.end(), inputs.begin() + static_cast<std::ptrdiff_t>(appended_), inputs.end());
  return all;
}

mx::array RopeAppendAttention::by_heads(const mx::array& result) const {
  int64_t row = layout_.head_dim;
  int64_t position = layout_.heads * row;
  int time = result.shape(1);
  return view(
      result,
      {result.shape(0), layout_.heads, time, layout_.head_dim},
      {time * position, row, position, 1},
      0);
}

Arrays RopeAppendAttention::compose(const Arrays& inputs) {
  return staged(inputs, [](auto& stage, const Arrays& from) { return stage->compose(from)[0]; });
}

Arrays RopeAppendAttention::differentiable(const Arrays& inputs) {
  return staged(inputs, [](auto& stage, const Arrays& from) {
    return mx::array(from[0].shape(), from[0].dtype(), stage, from);
  });
}

template <typename Run>
Arrays RopeAppendAttention::staged(const Arrays& inputs, Run run) {
  auto s = stream();
  auto& [heads, kv_heads, head_dim, capacity] = layout_;
  auto state = run(append_, appended(inputs));
  int batch = state.shape(0);
  int time = inputs[1].shape(1);
  int area = heads * static_cast<int>(QUERY_POSITIONS);
  auto rows = [&, head_dim = head_dim](int from, int to, mx::Shape shape) {
    return mx::reshape(
        mx::slice(state, {0, from, 0}, {batch, to, head_dim}, s), std::move(shape), s);
  };
  int keys = area + kv_heads * capacity;
  mx::Shape all = {batch, kv_heads, capacity, head_dim};
  mx::Shape seen = {batch, kv_heads, len_, head_dim};
  Arrays stages = {
      rows(0, heads * time, {batch, heads, time, head_dim}),
      mx::slice(rows(area, keys, all), {0, 0, 0, 0}, seen, s),
      mx::slice(rows(keys, keys + kv_heads * capacity, all), {0, 0, 0, 0}, seen, s)};
  stages.insert(
      stages.end(), inputs.begin() + static_cast<std::ptrdiff_t>(appended_), inputs.end());
  auto attended = mx::transpose(run(attention_, stages), {0, 2, 1, 3}, s);
  return {state, mx::reshape(attended, {batch, time, heads * head_dim}, s)};
}

bool RopeAppendAttention::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const RopeAppendAttention&>(other);
  return append_->is_equivalent(*o.append_) && attention_->is_equivalent(*o.attention_) &&
         len_ == o.len_;
}

std::vector<Dispatch> RopeAppendAttention::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto all = append_->dispatches(appended(inputs), {outputs[0]}, max_threads);
  if (outputs[1].size() > 0) {
    auto stages = attended(inputs, outputs[0]);
    auto more = attention_->dispatches(stages, {by_heads(outputs[1])}, max_threads);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

Cost RopeAppendAttention::cost(const Arrays& inputs, const Arrays& outputs) {
  auto append = append_->cost(appended(inputs), {outputs[0]});
  if (outputs[1].size() == 0) {
    return append;
  }
  auto rest = attention_->cost(attended(inputs, outputs[0]), {by_heads(outputs[1])});
  return {append.dispatches + rest.dispatches, append.device_bytes + rest.device_bytes};
}

CpuCall RopeAppendAttention::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  Arrays state = {outputs[0]};
  Arrays result = {by_heads(outputs[1])};
  auto append = stage_call(*append_, appended(inputs), state);
  if (outputs[1].size() == 0) {
    return append;
  }
  auto attend = stage_call(*attention_, attended(inputs, outputs[0]), result);
  return [append = std::move(append), attend = std::move(attend)] {
    append();
    attend();
  };
}

} // namespace mlx_primitives
