// Splits qkv into the queries, keys and values of each head.
#include <cmath>

#include "../../metal/rope_append.h"
#include "ops/rope.h"
#include "ops/rope_append.h"

namespace mlx_primitives {

namespace {
constexpr auto heads_op = "rope_append";
} // namespace

Arrays rope_heads(
    const mx::array& qkv,
    const KvLayout& layout,
    const Rotation& rotation,
    const mx::array& offset,
    mx::StreamOrDevice s_) {
  require_kernel_dtype(heads_op, qkv.dtype());
  auto width = (int64_t{layout.heads} + 2 * int64_t{layout.kv_heads}) * layout.head_dim;
  if (layout.heads < 1 || layout.kv_heads < 1 || qkv.ndim() != 3 || qkv.shape(2) != width) {
    refuse(heads_op, "expected qkv (batch, time, ", width, "), got ", qkv.shape());
  }
  check_rotation(rotation, layout.head_dim);
  check_positions("offset", offset, qkv.shape(0));
  auto s = mx::to_stream(s_);
  Arrays inputs = {row_contiguous(qkv, s), row_contiguous(convert(offset, mx::int32, s), s)};
  if (rotation.freqs) {
    inputs.push_back(row_contiguous(convert(*rotation.freqs, mx::float32, s), s));
  }
  RopeHeads heads(s, std::make_shared<RopeAppend>(s, layout, rotation), true);
  return heads.node(std::move(inputs), true);
}

Arrays RopeHeads::node(Arrays inputs, bool forward) {
  auto primitive = std::make_shared<RopeHeads>(stream(), append_, forward);
  auto shapes = primitive->output_shapes(inputs);
  std::vector<mx::Dtype> dtypes(shapes.size(), inputs[0].dtype());
  return mx::array::make_arrays(std::move(shapes), dtypes, std::move(primitive), std::move(inputs));
}

std::vector<mx::Shape> RopeHeads::output_shapes(const Arrays& inputs) {
  auto& layout = append_->layout_;
  auto& first = inputs[0];
  int batch = first.shape(0);
  if (!forward_) {
    return {{batch, first.shape(2), (layout.heads + 2 * layout.kv_heads) * layout.head_dim}};
  }
  mx::Shape keys = {batch, layout.kv_heads, first.shape(1), layout.head_dim};
  return {{batch, layout.heads, first.shape(1), layout.head_dim}, keys, keys};
}

Arrays RopeAppend::composed_heads(
    const mx::array& qkv, const mx::array& offset, const std::optional<mx::array>& freqs) {
  auto s = stream();
  auto& [heads, kv_heads, head_dim, capacity] = layout_;
  int batch = qkv.shape(0);
  int time = qkv.shape(1);
  auto vectors = mx::reshape(qkv, {batch, time, heads + 2 * kv_heads, head_dim}, s);
  vectors = mx::transpose(vectors, {0, 2, 1, 3}, s);
  auto of_heads = [&, head_dim = head_dim](const mx::array& x, int from, int to) {
    return mx::slice(x, {0, from, 0, 0}, {batch, to, time, head_dim}, s);
  };
  auto turned = of_heads(vectors, 0, heads + kv_heads);
  if (multiplier_ != 1.0f) {
    auto factor = mx::array(multiplier_, qkv.dtype());
    auto scaled = mx::multiply(
        mx::slice(turned, {0, 0, 0, 0}, {batch, heads + kv_heads, time, dims_}, s), factor, s);
    auto rest = mx::slice(turned, {0, 0, 0, dims_}, {batch, heads + kv_heads, time, head_dim}, s);
    turned = mx::concatenate({scaled, rest}, -1, s);
  }
  auto base = freqs ? std::nullopt : std::optional<float>(base_);
  turned =
      mx::fast::rope(turned, dims_, traditional_, base, scale_, offset_of_mlx(offset, s), freqs, s);
  return {
      of_heads(turned, 0, heads),
      of_heads(turned, heads, heads + kv_heads),
      of_heads(vectors, heads + kv_heads, heads + 2 * kv_heads)};
}

Arrays RopeHeads::compose(const Arrays& inputs) {
  auto& offset = inputs[arrays()];
  auto freqs = inputs.size() > arrays() + 1 ? std::optional(inputs.back()) : std::nullopt;
  auto forward = [&](const Arrays& x) { return append_->composed_heads(x[0], offset, freqs); };
  if (forward_) {
    return forward({inputs[0]});
  }
  // The op is linear, so its derivatives do not depend on the values of the inputs.
  auto step = mx::zeros(output_shapes(inputs)[0], inputs[0].dtype(), stream());
  return mx::vjp(forward, {step}, {inputs[0], inputs[1], inputs[2]}).second;
}

Arrays RopeHeads::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  Arrays inputs;
  for (auto& cotangent : cotangents) {
    inputs.push_back(row_contiguous(cotangent, stream()));
  }
  auto places = primals.begin() + static_cast<std::ptrdiff_t>(arrays());
  inputs.insert(inputs.end(), places, primals.end());
  auto all = node(std::move(inputs), !forward_);
  Arrays gradients;
  for (int argnum : argnums) {
    if (argnum >= static_cast<int>(arrays())) { // MLX refuses it
      return ComposedPrimitive::vjp(primals, cotangents, argnums, outputs);
    }
    gradients.push_back(all[argnum]);
  }
  return gradients;
}

bool RopeHeads::is_equivalent(const mx::Primitive& other) const {
  auto& o = static_cast<const RopeHeads&>(other);
  return append_->is_equivalent(*o.append_) && forward_ == o.forward_;
}

std::vector<Dispatch> RopeHeads::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto& layout = append_->layout_;
  auto& qkv = forward_ ? inputs[0] : outputs[0];
  auto& offset = inputs[arrays()];
  bool explicit_freqs = inputs.size() > arrays() + 1;
  RopeAppendParams params{};
  params.batch = qkv.shape(0);
  params.heads = layout.heads;
  params.kv_heads = layout.kv_heads;
  params.length = qkv.shape(1);
  params.features = layout.head_dim;
  params.pairs = append_->dims_ / 2;
  params.columns = rope_columns(params.features, params.pairs, /* in_place */ false);
  params.offset_stride = offset.size() > 1 ? 1 : 0;
  params.scale = append_->scale_;
  params.log2_base = explicit_freqs ? 0.0f : std::log2(append_->base_);
  params.multiplier = rounded(append_->multiplier_, qkv.dtype());

  uint64_t heads = uint64_t{params.heads} + 2 * uint64_t{params.kv_heads};
  std::string kernel = forward_ ? "mlxp_rope_append_heads" : "mlxp_rope_append_heads_grad";
  kernel += append_->traditional_ ? "_interleaved" : "_half";
  kernel += explicit_freqs ? "_freqs" : "_base";
  auto launch = plan_box(
      heads_op,
      kernel + type_suffix(qkv),
      {params.columns, params.length, params.batch * ceil_div(heads, APPEND_HEADS)},
      max_threads);
  auto bound = inputs;
  if (!explicit_freqs) {
    bound.push_back(offset); // without freqs, bind any buffer
  }
  return {{heads_op, launch, bound, outputs, params}};
}

CpuCall RopeHeads::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& qkv = forward_ ? inputs[0] : outputs[0];
  auto& heads = forward_ ? outputs : inputs;
  Arrays places(inputs.begin() + static_cast<std::ptrdiff_t>(arrays()), inputs.end());
  places.insert(places.begin() + 1, places[0]); // slots, which nothing reads
  auto call = append_->call(qkv, qkv, places, outputs[0], forward_);
  for (size_t i = 0; i < 3; ++i) {
    call.heads[i] = const_cast<uint8_t*>(bytes(heads[i])); // written only in the forward direction
  }
  return [call] { cpu::mlxp_cpu_rope_append(call); };
}

} // namespace mlx_primitives
