#include "ops/linear.h"

#include "ops/activation.h"

namespace mlx_primitives {

mx::array linear(
    const mx::array& x,
    const mx::array& w,
    const std::optional<mx::array>& bias,
    ActivationKind activation,
    const std::optional<mx::array>& residual,
    mx::StreamOrDevice s_) {
  constexpr auto op = "linear";
  if (x.ndim() == 0 || w.ndim() != 2 || x.shape(-1) != w.shape(1)) {
    refuse(op, "expected x [..., k] and w [n, k], got ", x.shape(), " and ", w.shape());
  }
  auto shape = x.shape();
  shape.back() = w.shape(0);
  auto dtype = mx::result_type(x, w);
  if (bias) {
    if (bias->ndim() != 1 || bias->shape(0) != w.shape(0)) {
      refuse(op, "expected bias of shape (", w.shape(0), "), got ", bias->shape());
    }
    dtype = mx::promote_types(dtype, bias->dtype());
  }
  if (residual) {
    if (residual->shape() != shape) {
      refuse(op, "expected residual of shape ", shape, ", got ", residual->shape());
    }
    dtype = mx::promote_types(dtype, residual->dtype());
  }
  require_kernel_dtype(op, dtype);

  auto s = mx::to_stream(s_);
  std::vector<mx::array> inputs = {x, w};
  if (bias) {
    inputs.push_back(*bias);
  }
  if (residual) {
    inputs.push_back(*residual);
  }
  for (auto& input : inputs) {
    input = row_contiguous(mx::astype(input, dtype, s), s);
  }
  Linear::State state{false, bias.has_value(), residual.has_value(), activation};
  return mx::array(shape, dtype, std::make_shared<Linear>(s, state), std::move(inputs));
}

mx::array matmul(const mx::array& a, const mx::array& b, bool transposed, mx::StreamOrDevice s_) {
  constexpr auto op = "matmul";
  if (a.ndim() < 2 || b.ndim() < 2 || a.shape(-1) != b.shape(transposed ? -1 : -2)) {
    const char* wanted = transposed ? "b [..., n, k]" : "b [..., k, n]";
    refuse(op, "expected a [..., m, k] and ", wanted, ", got ", a.shape(), " and ", b.shape());
  }
  auto dtype = mx::result_type(a, b);
  require_kernel_dtype(op, dtype);
  auto s = mx::to_stream(s_);
  std::vector<mx::array> inputs = {a, b};
  if (b.ndim() > 2) { // else all rows of a meet the same b
    mx::Shape leading = mx::broadcast_shapes(
        mx::Shape(a.shape().begin(), a.shape().end() - 2),
        mx::Shape(b.shape().begin(), b.shape().end() - 2));
    for (auto& input : inputs) {
      auto shape = leading;
      shape.insert(shape.end(), input.shape().end() - 2, input.shape().end());
      input = mx::broadcast_to(input, shape, s);
    }
  }
  for (auto& input : inputs) {
    input = row_contiguous(mx::astype(input, dtype, s), s);
  }
  auto shape = inputs[0].shape();
  shape.back() = b.shape(transposed ? -2 : -1);
  Linear::State state{!transposed, false, false, ACTIVATION_NONE};
  return mx::array(shape, dtype, std::make_shared<Linear>(s, state), std::move(inputs));
}

const mx::array* Linear::bias(const std::vector<mx::array>& inputs) const {
  return state_.biased ? &inputs[2] : nullptr;
}

const mx::array* Linear::residual(const std::vector<mx::array>& inputs) const {
  return state_.residual ? &inputs.back() : nullptr;
}

LinearShape Linear::shape(const std::vector<mx::array>& inputs) const {
  auto& x = inputs[0].shape();
  auto& w = inputs[1].shape();
  auto product = [](auto from, auto to) {
    uint64_t count = 1;
    for (; from != to; ++from) {
      count *= *from;
    }
    return count;
  };
  LinearShape shape{};
  shape.batch = product(w.begin(), w.end() - 2);
  auto leading = w.size() > 2 ? x.end() - 2 : x.begin();
  shape.m = product(leading, x.end() - 1);
  shape.k = x.back();
  shape.n = w[w.size() - (state_.columns ? 1 : 2)];
  shape.columns = state_.columns;
  return shape;
}

void Linear::prepare(const std::vector<mx::array>& inputs, mx::array& out) const {
  for (auto& input : inputs) {
    require_row_contiguous("linear", input);
  }
  if (auto* last = residual(inputs)) {
    donate_or_allocate(*last, out);
  } else {
    allocate(out);
  }
}

std::vector<mx::array> Linear::compose(const std::vector<mx::array>& inputs) {
  auto s = stream();
  auto& w = inputs[1];
  auto y = mx::matmul(inputs[0], state_.columns ? w : mx::swapaxes(w, -1, -2, s), s);
  if (auto* added = bias(inputs)) {
    y = mx::add(y, *added, s);
  }
  y = composed_activation(state_.activation, y, s);
  if (auto* added = residual(inputs)) {
    y = mx::add(y, *added, s);
  }
  return {y};
}

std::pair<std::vector<mx::array>, std::vector<int>> Linear::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  auto s = stream();
  int size = batch_size(inputs, axes);
  auto& w = inputs[1];
  bool shared_bias = !state_.biased || axes[2] < 0;
  if (!state_.columns && w.ndim() == 2 && axes[1] < 0 && shared_bias) {
    // One layer for all: the new axis is one more of the leading ones.
    auto x = batch_first(inputs[0], axes[0], size, s);
    std::optional<mx::array> added;
    if (auto* last = residual(inputs)) {
      added = batch_first(*last, axes.back(), size, s);
    }
    auto* b = bias(inputs);
    auto kept = b ? std::optional(*b) : std::nullopt;
    return {{linear(x, w, kept, state_.activation, added, s)}, {0}};
  }
  return ComposedPrimitive::vmap(inputs, axes);
}

bool Linear::is_equivalent(const mx::Primitive& other) const {
  return state_ == static_cast<const Linear&>(other).state_;
}

std::vector<mx::Shape> Linear::output_shapes(const std::vector<mx::array>& inputs) {
  auto shape = inputs[0].shape();
  shape.back() = inputs[1].shape(state_.columns ? -1 : -2);
  return {shape};
}

} // namespace mlx_primitives
