#include "ops/activation.h"

#include <algorithm>

#include "plan/activation.h"

namespace mlx_primitives {

namespace {

std::string op_name(ActivationKind kind) {
  return std::string(activation_name(kind));
}

mx::Dtype floating(const char* op, mx::Dtype dtype) {
  auto kernel = mx::issubdtype(dtype, mx::inexact) ? dtype : mx::float32;
  require_kernel_dtype(op, kernel);
  return kernel;
}

/** What is applied to the first of two inputs before they meet. */
ActivationKind gate(ActivationKind kind) {
  switch (kind) {
    case ACTIVATION_SWIGLU:
      return ACTIVATION_SILU;
    case ACTIVATION_GEGLU:
      return ACTIVATION_GELU;
    case ACTIVATION_GEGLU_TANH:
      return ACTIVATION_GELU_TANH;
    default:
      return ACTIVATION_NONE;
  }
}

} // namespace

mx::array activation(ActivationKind kind, const mx::array& x, mx::StreamOrDevice s_) {
  auto s = mx::to_stream(s_);
  auto dtype = floating(op_name(kind).c_str(), x.dtype());
  std::vector<mx::array> inputs = {row_contiguous(mx::astype(x, dtype, s), s)};
  return mx::array(x.shape(), dtype, std::make_shared<Activation>(s, kind), std::move(inputs));
}

mx::array activation(
    ActivationKind kind, const mx::array& a, const mx::array& b, mx::StreamOrDevice s_) {
  auto s = mx::to_stream(s_);
  auto dtype = floating(op_name(kind).c_str(), mx::result_type(a, b));
  std::vector<mx::array> inputs = {a, b};
  if (a.shape() != b.shape()) {
    inputs = mx::broadcast_arrays(inputs, s);
  }
  for (auto& input : inputs) {
    input = row_contiguous(mx::astype(input, dtype, s), s);
  }
  auto shape = inputs[0].shape();
  return mx::array(shape, dtype, std::make_shared<Activation>(s, kind), std::move(inputs));
}

mx::array composed_activation(ActivationKind kind, const mx::array& x, mx::Stream s) {
  auto number = [&](float value) { return mx::array(value, x.dtype()); };
  auto sum = [&](const mx::array& a, const mx::array& b) { return mx::add(a, b, s); };
  auto product = [&](const mx::array& a, const mx::array& b) { return mx::multiply(a, b, s); };
  switch (kind) {
    case ACTIVATION_RELU:
      return mx::maximum(x, number(0.0f), s);
    case ACTIVATION_GELU: {
      auto erf = mx::erf(mx::divide(x, number(M_SQRT2), s), s);
      return mx::divide(product(x, sum(number(1.0f), erf)), number(2.0f), s);
    }
    case ACTIVATION_GELU_TANH: {
      auto cubic = product(number(0.044715f), mx::power(x, number(3.0f), s));
      auto inner = product(number(0.7978845608f), sum(x, cubic));
      return product(product(number(0.5f), x), sum(number(1.0f), mx::tanh(inner, s)));
    }
    case ACTIVATION_SILU:
      return product(x, mx::sigmoid(x, s));
    default:
      return x;
  }
}

std::vector<mx::array> Activation::compose(const std::vector<mx::array>& inputs) {
  auto s = stream();
  auto& x = inputs[0];
  switch (kind_) {
    case ACTIVATION_ADD_RELU:
      return {composed_activation(ACTIVATION_RELU, mx::add(x, inputs[1], s), s)};
    case ACTIVATION_MUL_RELU:
      return {composed_activation(ACTIVATION_RELU, mx::multiply(x, inputs[1], s), s)};
    case ACTIVATION_SWIGLU:
    case ACTIVATION_GEGLU:
    case ACTIVATION_GEGLU_TANH:
      return {mx::multiply(composed_activation(gate(kind_), x, s), inputs[1], s)};
    default:
      return {composed_activation(kind_, x, s)};
  }
}

std::pair<std::vector<mx::array>, std::vector<int>> Activation::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  int size = batch_size(inputs, axes);
  auto x = batch_first(inputs[0], axes[0], size, stream());
  if (inputs.size() == 1) {
    return {{activation(kind_, x, stream())}, {0}};
  }
  auto y = batch_first(inputs[1], axes[1], size, stream());
  return {{activation(kind_, x, y, stream())}, {0}};
}

bool Activation::is_equivalent(const mx::Primitive& other) const {
  return kind_ == static_cast<const Activation&>(other).kind_;
}

std::vector<mx::Shape> Activation::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape()};
}

mx::array affine(
    const mx::array& x, const mx::array& scale, const mx::array& shift, mx::StreamOrDevice s_) {
  constexpr auto op = "affine";
  auto s = mx::to_stream(s_);
  auto dtype = floating(op, mx::result_type({x, scale, shift}));
  std::vector<mx::array> inputs = {row_contiguous(mx::astype(x, dtype, s), s)};
  for (const auto* factor : {&scale, &shift}) {
    bool vector = factor->ndim() == 1 && x.ndim() > 0 && factor->shape(0) == x.shape(-1);
    if (factor->ndim() != 0 && !vector) {
      refuse(
          op,
          "expected scale and shift to be scalars or vectors as long as the last axis of x, got ",
          factor->shape(),
          " for x of shape ",
          x.shape());
    }
    inputs.push_back(row_contiguous(mx::astype(*factor, dtype, s), s));
  }
  return mx::array(x.shape(), dtype, std::make_shared<Affine>(s), std::move(inputs));
}

std::vector<mx::array> Affine::compose(const std::vector<mx::array>& inputs) {
  return {mx::add(mx::multiply(inputs[0], inputs[1], stream()), inputs[2], stream())};
}

std::pair<std::vector<mx::array>, std::vector<int>> Affine::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  if (axes[1] >= 0 || axes[2] >= 0) { // a scale or a shift for each batch entry
    return ComposedPrimitive::vmap(inputs, axes);
  }
  auto x = batch_first(inputs[0], axes[0], batch_size(inputs, axes), stream());
  return {{affine(x, inputs[1], inputs[2], stream())}, {0}};
}

bool Affine::is_equivalent(const mx::Primitive&) const {
  return true;
}

std::vector<mx::Shape> Affine::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape()};
}

} // namespace mlx_primitives
