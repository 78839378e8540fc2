#include "ops/activation.h"

#include <algorithm>

#include "ops/norm_grad.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {

/** The activation's part of a kernel name. */
constexpr std::string_view activation_name(ActivationKind kind) {
  switch (kind) {
    case ACTIVATION_NONE:
      return "none";
    case ACTIVATION_RELU:
      return "relu";
    case ACTIVATION_GELU:
      return "gelu";
    case ACTIVATION_GELU_TANH:
      return "gelu_tanh";
    case ACTIVATION_SILU:
      return "silu";
    case ACTIVATION_SWIGLU:
      return "swiglu";
    case ACTIVATION_GEGLU:
      return "geglu";
    case ACTIVATION_GEGLU_TANH:
      return "geglu_tanh";
    case ACTIVATION_ADD_RELU:
      return "add_relu";
    case ACTIVATION_MUL_RELU:
      return "mul_relu";
    case ACTIVATION_RELU_SLOPE:
      return "relu_slope";
    case ACTIVATION_GELU_SLOPE:
      return "gelu_slope";
    case ACTIVATION_GELU_TANH_SLOPE:
      return "gelu_tanh_slope";
    case ACTIVATION_SILU_SLOPE:
      return "silu_slope";
  }
  return "";
}

std::string op_name(ActivationKind kind) {
  return std::string(activation_name(kind));
}

mx::Dtype floating(const char* op, mx::Dtype dtype) {
  auto kernel = mx::issubdtype(dtype, mx::inexact) ? dtype : mx::float32;
  require_kernel_dtype(op, kernel);
  return kernel;
}

/**
 * For a kind with two inputs, the activation that is applied to the first input. A gated kind such
 * as SwiGLU multiplies its result by the second input. A slope kind computes its derivative.
 */
ActivationKind gate(ActivationKind kind) {
  switch (kind) {
    case ACTIVATION_SWIGLU:
    case ACTIVATION_SILU_SLOPE:
      return ACTIVATION_SILU;
    case ACTIVATION_GEGLU:
    case ACTIVATION_GELU_SLOPE:
      return ACTIVATION_GELU;
    case ACTIVATION_GEGLU_TANH:
    case ACTIVATION_GELU_TANH_SLOPE:
      return ACTIVATION_GELU_TANH;
    case ACTIVATION_RELU_SLOPE:
      return ACTIVATION_RELU;
    default:
      return ACTIVATION_NONE;
  }
}

/**
 * The kind that computes the derivative of an activation of one input, or NONE. That kind has two
 * inputs.
 */
ActivationKind slope(ActivationKind kind) {
  switch (kind) {
    case ACTIVATION_SILU:
      return ACTIVATION_SILU_SLOPE;
    case ACTIVATION_GELU:
      return ACTIVATION_GELU_SLOPE;
    case ACTIVATION_GELU_TANH:
      return ACTIVATION_GELU_TANH_SLOPE;
    case ACTIVATION_RELU:
      return ACTIVATION_RELU_SLOPE;
    default:
      return ACTIVATION_NONE;
  }
}

} // namespace

mx::array activation(ActivationKind kind, const mx::array& x, mx::StreamOrDevice s_) {
  auto s = mx::to_stream(s_);
  auto dtype = floating(op_name(kind).c_str(), x.dtype());
  Arrays inputs = {row_contiguous(convert(x, dtype, s), s)};
  return mx::array(x.shape(), dtype, std::make_shared<Activation>(s, kind), std::move(inputs));
}

mx::array activation(
    ActivationKind kind, const mx::array& a, const mx::array& b, mx::StreamOrDevice s_) {
  auto s = mx::to_stream(s_);
  auto dtype = floating(op_name(kind).c_str(), mx::result_type(a, b));
  Arrays inputs = {a, b};
  if (a.shape() != b.shape()) {
    inputs = mx::broadcast_arrays(inputs, s);
  }
  for (auto& input : inputs) {
    input = row_contiguous(convert(input, dtype, s), s);
  }
  auto shape = inputs[0].shape();
  return mx::array(shape, dtype, std::make_shared<Activation>(s, kind), std::move(inputs));
}

mx::array activation_gradient(
    ActivationKind kind, const mx::array& x, const mx::array& g, mx::StreamOrDevice s) {
  return kind == ACTIVATION_NONE ? g : activation(slope(kind), x, g, s);
}

Arrays activation_gradients(
    ActivationKind kind,
    const mx::array& a,
    const mx::array& b,
    const mx::array& g,
    mx::StreamOrDevice s_) {
  auto s = mx::to_stream(s_);
  Arrays inputs = {a, b, g};
  for (auto& input : inputs) {
    input = row_contiguous(convert(input, g.dtype(), s), s);
  }
  return mx::array::make_arrays(
      {g.shape(), g.shape()},
      {g.dtype(), g.dtype()},
      std::make_shared<ActivationGrad>(s, kind),
      std::move(inputs));
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

Arrays Activation::compose(const Arrays& inputs) {
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
    case ACTIVATION_RELU_SLOPE:
    case ACTIVATION_GELU_SLOPE:
    case ACTIVATION_GELU_TANH_SLOPE:
    case ACTIVATION_SILU_SLOPE: {
      auto of_one = [&](const Arrays& x) {
        return Arrays{composed_activation(gate(kind_), x[0], s)};
      };
      return mx::vjp(of_one, {x}, {inputs[1]}).second;
    }
    default:
      return {composed_activation(kind_, x, s)};
  }
}

Arrays Activation::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  if (slope(gate(kind_)) == kind_) {
    return ComposedPrimitive::vjp(primals, cotangents, argnums, outputs);
  }
  auto& g = cotangents[0];
  if (primals.size() == 1) {
    return {activation_gradient(kind_, primals[0], g, stream())};
  }
  auto both = activation_gradients(kind_, primals[0], primals[1], g, stream());
  Arrays gradients;
  for (int argnum : argnums) {
    gradients.push_back(both[argnum]);
  }
  return gradients;
}

Arrays ActivationGrad::compose(const Arrays& inputs) {
  Activation forward(stream(), kind_);
  auto function = [&](const Arrays& x) { return forward.compose(x); };
  return mx::vjp(function, {inputs[0], inputs[1]}, {inputs[2]}).second;
}

std::pair<Arrays, std::vector<int>> ActivationGrad::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  auto s = stream();
  int size = batch_size(inputs, axes);
  auto mapped = [&](int i) { return batch_first(inputs[i], axes[i], size, s); };
  return {activation_gradients(kind_, mapped(0), mapped(1), mapped(2), s), {0, 0}};
}

bool ActivationGrad::is_equivalent(const mx::Primitive& other) const {
  return kind_ == static_cast<const ActivationGrad&>(other).kind_;
}

std::pair<Arrays, std::vector<int>> Activation::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
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

mx::array affine(
    const mx::array& x, const mx::array& scale, const mx::array& shift, mx::StreamOrDevice s_) {
  constexpr auto op = "affine";
  auto s = mx::to_stream(s_);
  auto dtype = floating(op, mx::result_type({x, scale, shift}));
  Arrays inputs = {row_contiguous(convert(x, dtype, s), s)};
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
    inputs.push_back(row_contiguous(convert(*factor, dtype, s), s));
  }
  return mx::array(x.shape(), dtype, std::make_shared<Affine>(s), std::move(inputs));
}

Arrays Affine::compose(const Arrays& inputs) {
  return {mx::add(mx::multiply(inputs[0], inputs[1], stream()), inputs[2], stream())};
}

Arrays Affine::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  auto s = stream();
  bool vectors = primals[1].ndim() == 1 && primals[2].ndim() == 1 && primals[0].size() > 0;
  if (!vectors || s.device != mx::Device::cpu || simulating()) {
    return ComposedPrimitive::vjp(primals, cotangents, argnums, outputs);
  }
  NormAffine affine{primals[1], primals[2]};
  return norm_vjp({false, 0, true}, primals[0], affine, cotangents[0], {}, argnums, 1, s);
}

std::pair<Arrays, std::vector<int>> Affine::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  if (axes[1] >= 0 || axes[2] >= 0) { // each batch entry has a separate scale or shift
    return ComposedPrimitive::vmap(inputs, axes);
  }
  auto x = batch_first(inputs[0], axes[0], batch_size(inputs, axes), stream());
  return {{affine(x, inputs[1], inputs[2], stream())}, {0}};
}

bool Affine::is_equivalent(const mx::Primitive&) const {
  return true;
}

namespace {
/** Each thread computes a quad, four consecutive elements of the flat arrays. */
std::vector<Dispatch> flat(
    const std::string& name, const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto& out = outputs[0];
  auto threads = std::clamp<uint32_t>(max_threads, 1, ACTIVATION_GROUP);
  auto groups = ceil_div(out.size(), uint64_t{threads} * READS);
  Launch launch{
      "mlxp_activation_" + name + type_suffix(out),
      {grid_count("activation", "threadgroups", groups), 1, 1},
      {threads, 1, 1}};
  return {{"activation", launch, inputs, outputs, ActivationParams{out.size()}}};
}
} // namespace

std::vector<Dispatch> Activation::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  return flat(op_name(kind_), inputs, outputs, max_threads);
}

std::vector<Dispatch> ActivationGrad::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  return flat(op_name(kind_) + "_grad", inputs, outputs, max_threads);
}

CpuCall ActivationGrad::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  return [element = element_of(outputs[0]),
          kind = static_cast<uint8_t>(kind_),
          a = bytes(inputs[0]),
          b = bytes(inputs[1]),
          g = bytes(inputs[2]),
          of_a = bytes(outputs[0]),
          of_b = bytes(outputs[1]),
          size = outputs[0].size()] {
    cpu::mlxp_cpu_combination_grad(element, kind, a, b, g, of_a, of_b, size);
  };
}

CpuCall Activation::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& out = outputs[0];
  return [element = element_of(out),
          kind = static_cast<uint8_t>(kind_),
          one = inputs.size() == 1,
          a = bytes(inputs[0]),
          b = bytes(inputs.back()),
          to = bytes(out),
          size = out.size()] {
    if (one) {
      cpu::mlxp_cpu_activation(element, kind, a, to, size);
    } else {
      cpu::mlxp_cpu_combination(element, kind, a, b, to, size);
    }
  };
}

std::vector<Dispatch> Affine::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  // Along x, each thread of the grid computes one quad of columns. Along y, it computes AFFINE_ROWS
  // rows.
  auto& x = inputs[0];
  Rows rows(x);
  auto threads = std::clamp<uint32_t>(max_threads, 1, ACTIVATION_GROUP);
  auto quads = static_cast<uint32_t>(ceil_div(rows.axis, READS));
  auto width = std::clamp<uint32_t>(quads, 1, threads);
  uint64_t high = ceil_div(grid_count("affine", "rows", rows.count), AFFINE_ROWS);
  auto height = static_cast<uint32_t>(std::clamp<uint64_t>(high, 1, threads / width));
  Launch launch{
      "mlxp_activation_affine" + type_suffix(x),
      {static_cast<uint32_t>(ceil_div(quads, width)),
       static_cast<uint32_t>(ceil_div(high, height)),
       1},
      {width, height, 1}};
  AffineParams params{
      rows.narrow(),
      rows.axis,
      static_cast<uint32_t>(inputs[1].size()),
      static_cast<uint32_t>(inputs[2].size())};
  return {{"activation", launch, inputs, outputs, params}};
}

CpuCall Affine::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& x = inputs[0];
  Rows rows(x);
  return [shape = cpu::AffineShape{rows.count, rows.axis, inputs[1].size(), inputs[2].size()},
          element = element_of(x),
          in = bytes(x),
          scale = bytes(inputs[1]),
          shift = bytes(inputs[2]),
          to = bytes(outputs[0])] { cpu::mlxp_cpu_affine(element, in, scale, shift, to, shape); };
}

} // namespace mlx_primitives
