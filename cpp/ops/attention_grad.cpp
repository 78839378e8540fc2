// The derivatives of an Attention.
#include <algorithm>

#include "ops/attention.h"
#include "ops/quantize.h"

namespace mlx_primitives {

namespace {

/** Builds the node that computes the derivatives. Its last input is the cotangent. */
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
  auto s = stream();
  bool of_keys = false;
  bool of_mask = false;
  bool refused =
      std::any_of(primals.begin(), primals.end(), [](const mx::array& x) { return x.size() == 0; });
  for (int argnum : argnums) {
    of_keys = of_keys || (argnum > 0 && argnum < mask());
    of_mask = of_mask || (masked_ && argnum == mask() && primals[argnum].dtype() != mx::bool_);
    refused = refused || (bits_ > 0 && (argnum == 1 || argnum == values())); // no gradient of codes
  }
  if (refused) {
    return ComposedPrimitive::vjp(primals, cotangents, argnums, outputs);
  }
  // Unpack packed keys and values once. The unpacked arrays take less memory than their
  // derivatives, and unpacking again for each block of queries would take more time.
  Dequantize codes(s, group_size_, bits_);
  auto packing = [&](int at) { return Arrays(primals.begin() + at, primals.begin() + at + 3); };
  Arrays inputs = {primals[0]};
  for (int at : {1, values()}) {
    auto rows = primals[at];
    if (bits_ > 0) {
      rows = dequantize(rows, primals[at + 1], primals[at + 2], group_size_, bits_, s);
    }
    inputs.push_back(rows);
  }
  inputs.insert(inputs.end(), primals.begin() + mask(), primals.end());
  inputs.push_back(cotangents[0]);
  auto plain = std::make_shared<Attention>(s, rules_, masked_, sinks_);
  auto grad = std::make_shared<AttentionGrad>(s, plain, of_keys, of_mask);
  auto all = node(grad, std::move(inputs));
  Arrays result;
  for (int argnum : argnums) {                    // a boolean mask has no derivatives
    int first = argnum < values() ? 1 : values(); // first array of keys or values
    if (bits_ > 0 && argnum > 0 && argnum < mask()) {
      auto& of_rows = all[first == 1 ? 1 : 2];
      result.push_back(codes.vjp(packing(first), {of_rows}, {argnum - first}, {})[0]);
      continue;
    }
    int output = grad->output_of(argnum < mask() ? argnum : argnum - mask() + 3);
    result.push_back(output < 0 ? mx::zeros_like(primals[argnum], s) : all[output]);
  }
  return result;
}

std::vector<int> AttentionGrad::argnums() const {
  std::vector<int> all = {0};
  if (of_keys_) {
    all.insert(all.end(), {1, 2});
  }
  if (of_mask_) {
    all.push_back(attention_->mask());
  }
  if (attention_->sinks_) {
    all.push_back(attention_->sinks());
  }
  return all;
}

int AttentionGrad::output_of(int argnum) const {
  auto all = argnums();
  auto at = std::find(all.begin(), all.end(), argnum);
  return at == all.end() ? -1 : static_cast<int>(at - all.begin());
}

Arrays AttentionGrad::compose(const Arrays& inputs) {
  Arrays primals(inputs.begin(), inputs.end() - 1);
  return attention_->ComposedPrimitive::vjp(primals, {inputs.back()}, argnums(), {});
}

std::vector<mx::Shape> AttentionGrad::output_shapes(const Arrays& inputs) {
  std::vector<mx::Shape> shapes;
  for (int argnum : argnums()) {
    shapes.push_back(inputs[argnum].shape());
  }
  return shapes;
}

std::pair<Arrays, std::vector<int>> AttentionGrad::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  if (attention_->sinks_) {
    return ComposedPrimitive::vmap(inputs, axes); // our kernels sum sink gradients over the batch
  }
  auto s = stream();
  int size = batch_size(inputs, axes);
  auto all = joined_to_batch(inputs, axes, static_cast<int>(inputs.size()), size, s);
  auto same = std::make_shared<AttentionGrad>(s, attention_, of_keys_, of_mask_);
  auto outputs = node(std::move(same), std::move(all));
  std::vector<int> out_axes(outputs.size(), 0);
  for (auto& out : outputs) {
    out = mx::unflatten(out, 0, {size, out.shape(0) / size}, s);
  }
  return {std::move(outputs), std::move(out_axes)};
}

bool AttentionGrad::is_equivalent(const mx::Primitive& other) const {
  auto& grad = static_cast<const AttentionGrad&>(other);
  return attention_->is_equivalent(*grad.attention_) && of_keys_ == grad.of_keys_ &&
         of_mask_ == grad.of_mask_;
}

} // namespace mlx_primitives
