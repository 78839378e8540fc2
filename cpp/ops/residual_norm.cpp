#include "ops/residual_norm.h"

#include "../../metal/layer_norm.h"
#include "../../metal/residual_norm.h"
#include "ops/norm_grad.h"
#include "ops/rms_norm.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {

Arrays residual_norm(
    const char* op,
    bool centered,
    const mx::array& x,
    const mx::array& residual,
    const NormAffine& affine,
    float eps,
    mx::StreamOrDevice s_) {
  require_last_axis(op, x);
  if (residual.shape() != x.shape()) {
    refuse(op, "expected a residual of shape ", x.shape(), ", got ", residual.shape());
  }
  affine.require(op, x);
  auto dtype = mx::result_type(x, residual);
  require_kernel_dtype(op, dtype);

  auto s = mx::to_stream(s_);
  // A weight of a wider type makes the type of the norm wider, but not the type of the sum. In this
  // case, build two nodes.
  Arrays promoted = {x, residual};
  if (affine.weight) { // without a weight, a bias does not promote
    promoted.push_back(*affine.weight);
    if (affine.bias) {
      promoted.push_back(*affine.bias);
    }
  }
  if (mx::result_type(promoted) != dtype) {
    auto sum = mx::add(x, residual, s);
    auto norm = centered ? layer_norm(sum, affine.weight, affine.bias, eps, s)
                         : rms_norm(sum, affine.weight, eps, s);
    return {sum, norm};
  }
  Arrays inputs = {
      row_contiguous(convert(x, dtype, s), s), row_contiguous(convert(residual, dtype, s), s)};
  affine.push(inputs, dtype, s);
  auto primitive = std::make_shared<ResidualNorm>(
      s, centered, affine.weight.has_value(), affine.bias.has_value(), eps);
  return mx::array::make_arrays(
      {x.shape(), x.shape()}, {dtype, dtype}, std::move(primitive), std::move(inputs));
}

} // namespace

Arrays rms_norm_residual(
    const mx::array& x,
    const mx::array& residual,
    const std::optional<mx::array>& weight,
    float eps,
    mx::StreamOrDevice s) {
  return residual_norm("rms_norm_residual", false, x, residual, {weight, {}}, eps, s);
}

Arrays layer_norm_residual(
    const mx::array& x,
    const mx::array& residual,
    const std::optional<mx::array>& weight,
    const std::optional<mx::array>& bias,
    float eps,
    mx::StreamOrDevice s) {
  return residual_norm("layer_norm_residual", true, x, residual, {weight, bias}, eps, s);
}

Arrays ResidualNorm::compose(const Arrays& inputs) {
  auto s = stream();
  auto affine = NormAffine::of(inputs, 2, weighted_, biased_);
  auto sum = mx::add(inputs[0], inputs[1], s);
  return {
      sum,
      centered_ ? composed_layer_norm(sum, affine, eps_, s)
                : mx::fast::rms_norm(sum, affine.weight, eps_, s)};
}

Arrays ResidualNorm::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  auto affine = NormAffine::of(primals, 2, weighted_, biased_);
  auto& of_sum = cotangents[0];
  auto& of_norm = cotangents[1];
  return norm_vjp({centered_, eps_}, outputs[0], affine, of_norm, of_sum, argnums, 2, stream());
}

std::pair<Arrays, std::vector<int>> ResidualNorm::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  auto s = stream();
  int size = batch_size(inputs, axes);
  auto x = batch_first(inputs[0], axes[0], size, s);
  auto residual = batch_first(inputs[1], axes[1], size, s);
  auto affine = NormAffine::of(inputs, 2, weighted_, biased_);
  int weight_axis = weighted_ ? axes[2] : -1;
  int bias_axis = biased_ ? axes[2 + weighted_] : -1;
  bool own = weight_axis >= 0 || bias_axis >= 0; // a separate weight or bias per batch entry
  auto fused = own ? NormAffine{} : affine;
  auto outputs = residual_norm(name(), centered_, x, residual, fused, eps_, s);
  if (own) {
    outputs[1] = affine.batched(weight_axis, bias_axis, x.ndim(), s).apply(outputs[1], s);
  }
  return {outputs, {0, 0}};
}

bool ResidualNorm::is_equivalent(const mx::Primitive& other) const {
  auto& norm = static_cast<const ResidualNorm&>(other);
  return centered_ == norm.centered_ && weighted_ == norm.weighted_ && biased_ == norm.biased_ &&
         eps_ == norm.eps_;
}

std::vector<mx::Shape> ResidualNorm::output_shapes(const Arrays& inputs) {
  return {inputs[0].shape(), inputs[0].shape()};
}

std::vector<Dispatch> ResidualNorm::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto& x = inputs[0];
  Rows rows(x);
  auto suffix = (centered_ ? "_layer" : "_rms") + type_suffix(x);
  // The fused kernel adds the elements of a row in the same order as the norm's separate kernel.
  uint32_t quads = centered_ ? unsigned{LAYER_NORM_QUADS} : 1;
  auto launch = plan_rows("residual_norm", suffix, rows, RESIDUAL_NORM_SLOTS, max_threads, quads);
  auto& weight = weighted_ ? inputs[2] : x; // a buffer must be bound
  auto& bias = biased_ ? inputs[2 + weighted_] : x;
  ResidualNormParams params{rows.narrow(), rows.axis, eps_, weighted_, biased_};
  return {{"residual_norm", launch, {x, inputs[1], weight, bias}, outputs, params}};
}

CpuCall ResidualNorm::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& x = inputs[0];
  Rows rows(x);
  cpu::ResidualNorm call{
      .x = bytes(x),
      .residual = bytes(inputs[1]),
      .weight = weighted_ ? bytes(inputs[2]) : nullptr,
      .bias = biased_ ? bytes(inputs[2 + weighted_]) : nullptr,
      .sum = bytes(outputs[0]),
      .norm = bytes(outputs[1]),
      .rows = rows.count,
      .axis = rows.axis,
      .eps = eps_,
      .centered = centered_};
  return [element = element_of(x), call] { cpu::mlxp_cpu_residual_norm(element, call); };
}

} // namespace mlx_primitives
