#include "ops/softmax.h"

namespace mlx_primitives {

namespace {
constexpr auto op = "softmax";

/** y * (t - sum(y * t)): the Jacobian of softmax is symmetric, so it serves vjp and jvp. */
mx::array project(const mx::array& y_, const mx::array& t_, mx::Stream s) {
  auto y = mx::astype(y_, mx::float32, s);
  auto yt = mx::multiply(y, mx::astype(t_, mx::float32, s), s);
  auto result = mx::subtract(yt, mx::multiply(y, mx::sum(yt, -1, true, s), s), s);
  return mx::astype(result, y_.dtype(), s);
}
} // namespace

mx::array softmax(const mx::array& x, mx::StreamOrDevice s_) {
  require_last_axis(op, x);
  auto dtype = mx::issubdtype(x.dtype(), mx::inexact) ? x.dtype() : mx::float32;
  require_kernel_dtype(op, dtype);
  auto s = mx::to_stream(s_);
  std::vector<mx::array> inputs = {row_contiguous(mx::astype(x, dtype, s), s)};
  return mx::array(x.shape(), dtype, std::make_shared<Softmax>(s), std::move(inputs));
}

std::vector<mx::array> Softmax::compose(const std::vector<mx::array>& inputs) {
  return {mx::softmax(inputs[0], -1, true, stream())};
}

std::vector<mx::array> Softmax::vjp(
    const std::vector<mx::array>&,
    const std::vector<mx::array>& cotangents,
    const std::vector<int>&,
    const std::vector<mx::array>& outputs) {
  return {project(outputs[0], cotangents[0], stream())};
}

std::vector<mx::array> Softmax::jvp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& tangents,
    const std::vector<int>&) {
  return {project(softmax(primals[0], stream()), tangents[0], stream())};
}

std::pair<std::vector<mx::array>, std::vector<int>> Softmax::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  auto x = batch_first(inputs[0], axes[0], batch_size(inputs, axes), stream());
  return {{softmax(x, stream())}, {0}};
}

bool Softmax::is_equivalent(const mx::Primitive&) const {
  return true;
}

std::vector<mx::Shape> Softmax::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape()};
}

} // namespace mlx_primitives
