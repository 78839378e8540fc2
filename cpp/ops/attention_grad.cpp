// The derivatives of an Attention.
#include <algorithm>

#include "ops/attention.h"

namespace mlx_primitives {

namespace {

/** The node of the derivatives; the last input is the cotangent. */
Arrays node(std::shared_ptr<AttentionGrad> primitive, Arrays inputs) {
  auto dtype = inputs[0].dtype();
  auto shapes = primitive->output_shapes(inputs);
  std::vector<mx::Dtype> dtypes(shapes.size(), dtype);
  return mx::array::make_arrays(std::move(shapes), dtypes, std::move(primitive), std::move(inputs));
}

} // namespace

Arrays Attention::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  auto is_mask = [this](int argnum) { return masked_ && argnum == mask(); };
  auto is_empty = [](const mx::array& x) { return x.size() == 0; };
  if (bits_ > 0 || std::any_of(argnums.begin(), argnums.end(), is_mask) ||
      std::any_of(primals.begin(), primals.begin() + 3, is_empty)) {
    return ComposedPrimitive::vjp(primals, cotangents, argnums, outputs);
  }
  auto s = stream();
  auto inputs = primals;
  inputs.push_back(cotangents[0]);
  auto forward = std::make_shared<Attention>(s, rules_, masked_, sinks_);
  auto all = node(std::make_shared<AttentionGrad>(s, std::move(forward)), std::move(inputs));
  Arrays result;
  for (int argnum : argnums) {
    result.push_back(all[std::min(argnum, 3)]);
  }
  return result;
}

Arrays AttentionGrad::compose(const Arrays& inputs) {
  Arrays primals(inputs.begin(), inputs.end() - 1);
  std::vector<int> argnums = {0, 1, 2};
  if (attention_->sinks_) {
    argnums.push_back(attention_->sinks());
  }
  return attention_->ComposedPrimitive::vjp(primals, {inputs.back()}, argnums, {});
}

std::vector<mx::Shape> AttentionGrad::output_shapes(const Arrays& inputs) {
  std::vector<mx::Shape> shapes = {inputs[0].shape(), inputs[1].shape(), inputs[2].shape()};
  if (attention_->sinks_) {
    shapes.push_back(inputs[attention_->sinks()].shape());
  }
  return shapes;
}

std::pair<Arrays, std::vector<int>> AttentionGrad::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  if (attention_->sinks_) {
    return ComposedPrimitive::vmap(inputs, axes); // our kernels add those in sinks over the batch
  }
  auto s = stream();
  int size = batch_size(inputs, axes);
  auto all = joined_to_batch(inputs, axes, static_cast<int>(inputs.size()), size, s);
  auto outputs = node(std::make_shared<AttentionGrad>(s, attention_), std::move(all));
  std::vector<int> out_axes(outputs.size(), 0);
  for (auto& out : outputs) {
    out = mx::unflatten(out, 0, {size, out.shape(0) / size}, s);
  }
  return {std::move(outputs), std::move(out_axes)};
}

bool AttentionGrad::is_equivalent(const mx::Primitive& other) const {
  return attention_->is_equivalent(*static_cast<const AttentionGrad&>(other).attention_);
}

} // namespace mlx_primitives
