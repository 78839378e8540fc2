// The derivatives of a RopeAppend.
#include <algorithm>

#include "ops/rope_append.h"

namespace mlx_primitives {

namespace {

/** Builds the node that computes the derivatives. Its outputs have the cotangent's type. */
Arrays node(std::shared_ptr<RopeAppendGrad> primitive, Arrays inputs) {
  auto dtype = inputs[0].dtype();
  auto shapes = primitive->output_shapes(inputs);
  return mx::array::make_arrays(
      std::move(shapes), {dtype, dtype}, std::move(primitive), std::move(inputs));
}

} // namespace

Arrays RopeAppend::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  bool of_places = std::any_of(argnums.begin(), argnums.end(), [](int i) { return i > 1; });
  if (of_places || primals[1].size() == 0) {
    return ComposedPrimitive::vjp(primals, cotangents, argnums, outputs);
  }
  auto s = stream();
  Rotation same{dims_, traditional_, base_, scale_, multiplier_, std::nullopt};
  auto append = std::make_shared<RopeAppend>(s, layout_, same);
  auto grad = std::make_shared<RopeAppendGrad>(s, append, primals[1].shape(1));
  Arrays inputs = {row_contiguous(cotangents[0], s)};
  inputs.insert(inputs.end(), primals.begin() + 2, primals.end());
  auto all = node(std::move(grad), std::move(inputs));
  Arrays result;
  for (int argnum : argnums) {
    result.push_back(all[argnum]);
  }
  return result;
}

/**
 * A RopeAppend is linear in the state and in qkv, so its derivatives do not depend on their values.
 */
Arrays RopeAppendGrad::compose(const Arrays& inputs) {
  auto s = stream();
  auto& g = inputs[0];
  Arrays primals = {mx::zeros_like(g, s), mx::zeros(output_shapes(inputs)[1], g.dtype(), s)};
  primals.insert(primals.end(), inputs.begin() + 1, inputs.end());
  return append_->ComposedPrimitive::vjp(primals, {g}, {0, 1}, {});
}

std::vector<mx::Shape> RopeAppendGrad::output_shapes(const Arrays& inputs) {
  auto& layout = append_->layout_;
  int width = (layout.heads + 2 * layout.kv_heads) * layout.head_dim;
  return {inputs[0].shape(), {inputs[0].shape(0), time_, width}};
}

std::pair<Arrays, std::vector<int>> RopeAppendGrad::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  if (inputs.size() > 3 && axes[3] >= 0) {
    return ComposedPrimitive::vmap(inputs, axes); // the kernel takes one set of frequencies
  }
  auto s = stream();
  int size = batch_size(inputs, axes);
  auto same = std::make_shared<RopeAppendGrad>(s, append_, time_);
  auto outputs = node(std::move(same), joined_steps(inputs, axes, 1, size, s));
  for (auto& out : outputs) {
    out = mx::unflatten(out, 0, {size, out.shape(0) / size}, s);
  }
  return {std::move(outputs), {0, 0}};
}

bool RopeAppendGrad::is_equivalent(const mx::Primitive& other) const {
  auto& o = static_cast<const RopeAppendGrad&>(other);
  return append_->is_equivalent(*o.append_) && time_ == o.time_;
}

std::vector<Dispatch> RopeAppendGrad::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  return append_->launches(inputs[0], {}, {inputs.begin() + 1, inputs.end()}, outputs, max_threads);
}

CpuCall RopeAppendGrad::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto call = append_->call(
      inputs[0],
      outputs[1],
      {inputs.begin() + 1, inputs.end()},
      outputs[0],
      /* forward */ false);
  return [call] { cpu::mlxp_cpu_rope_append(call); };
}

} // namespace mlx_primitives
