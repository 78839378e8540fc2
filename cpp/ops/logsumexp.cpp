#include "ops/logsumexp.h"

#include "ops/softmax.h"

namespace mlx_primitives {

namespace {

/** x as either kernel takes it. */
mx::array checked(const char* op, const mx::array& x, mx::Stream s) {
  require_last_axis(op, x);
  auto dtype = mx::issubdtype(x.dtype(), mx::inexact) ? x.dtype() : mx::float32;
  require_kernel_dtype(op, dtype);
  return row_contiguous(mx::astype(x, dtype, s), s);
}

/** With the last axis kept, as one element. */
mx::array reduced(const mx::array& x, mx::Stream s) {
  auto shape = x.shape();
  shape.back() = 1;
  return mx::array(shape, x.dtype(), std::make_shared<LogSumExp>(s), {x});
}

mx::array wide(const mx::array& x, mx::Stream s) {
  return mx::astype(x, mx::float32, s);
}

/** The sum over each row of products with its softmax, in float32. */
mx::array mean(const mx::array& x, const mx::array& weights, mx::Stream s) {
  auto shares = softmax(wide(x, s), s);
  return mx::sum(mx::multiply(shares, wide(weights, s), s), -1, true, s);
}

} // namespace

mx::array logsumexp(const mx::array& x, bool keepdims, mx::StreamOrDevice s_) {
  auto s = mx::to_stream(s_);
  auto result = reduced(checked("logsumexp", x, s), s);
  return keepdims ? result : mx::squeeze(result, -1, s);
}

mx::array log_softmax(const mx::array& x_, mx::StreamOrDevice s_) {
  auto s = mx::to_stream(s_);
  auto x = checked("log_softmax", x_, s);
  return mx::array(x.shape(), x.dtype(), std::make_shared<LogSoftmax>(s), {x});
}

std::vector<mx::array> LogSumExp::compose(const std::vector<mx::array>& inputs) {
  return {mx::logsumexp(inputs[0], -1, true, stream())};
}

std::vector<mx::array> LogSumExp::vjp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& cotangents,
    const std::vector<int>&,
    const std::vector<mx::array>&) {
  auto s = stream();
  return {mx::multiply(cotangents[0], softmax(primals[0], s), s)};
}

std::vector<mx::array> LogSumExp::jvp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& tangents,
    const std::vector<int>&) {
  return {mx::astype(mean(primals[0], tangents[0], stream()), primals[0].dtype(), stream())};
}

std::pair<std::vector<mx::array>, std::vector<int>> LogSumExp::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  auto x = batch_first(inputs[0], axes[0], batch_size(inputs, axes), stream());
  return {{reduced(row_contiguous(x, stream()), stream())}, {0}};
}

bool LogSumExp::is_equivalent(const mx::Primitive&) const {
  return true;
}

std::vector<mx::Shape> LogSumExp::output_shapes(const std::vector<mx::array>& inputs) {
  auto shape = inputs[0].shape();
  shape.back() = 1;
  return {shape};
}

std::vector<mx::array> LogSoftmax::compose(const std::vector<mx::array>& inputs) {
  auto s = stream();
  return {mx::subtract(inputs[0], mx::logsumexp(inputs[0], -1, true, s), s)};
}

std::vector<mx::array> LogSoftmax::vjp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& cotangents,
    const std::vector<int>&,
    const std::vector<mx::array>&) {
  auto s = stream();
  auto g = wide(cotangents[0], s);
  auto shares = softmax(wide(primals[0], s), s);
  auto result = mx::subtract(g, mx::multiply(shares, mx::sum(g, -1, true, s), s), s);
  return {mx::astype(result, primals[0].dtype(), s)};
}

std::vector<mx::array> LogSoftmax::jvp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& tangents,
    const std::vector<int>&) {
  auto s = stream();
  auto along = mean(primals[0], tangents[0], s);
  return {mx::astype(mx::subtract(wide(tangents[0], s), along, s), primals[0].dtype(), s)};
}

std::pair<std::vector<mx::array>, std::vector<int>> LogSoftmax::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  auto x = batch_first(inputs[0], axes[0], batch_size(inputs, axes), stream());
  return {{log_softmax(x, stream())}, {0}};
}

bool LogSoftmax::is_equivalent(const mx::Primitive&) const {
  return true;
}

std::vector<mx::Shape> LogSoftmax::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape()};
}

} // namespace mlx_primitives
