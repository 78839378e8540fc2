// The bridge's functions for MLX's built-in ops, which src/ffi/mod.rs declares.
#include <stdexcept>

#include "bridge/core.h"
#include "mlx-primitives/src/ffi/mod.rs.h"
#include "ops/take_grad.h"
#include "runtime/contiguous.h"
#include "runtime/convert.h"
#include "runtime/process.h"

namespace mlx_primitives::bridge {

namespace {

[[noreturn]] void unknown(const char* kind) {
  throw std::invalid_argument(std::string("[") + kind + "] expected a known op");
}

} // namespace

Handle unary(UnaryOp op, const MlxArray& a) {
  auto s = here();
  switch (op) {
    case UnaryOp::Abs:
      return handle(mx::abs(a, s));
    case UnaryOp::Cos:
      return handle(mx::cos(a, s));
    case UnaryOp::Erf:
      return handle(mx::erf(a, s));
    case UnaryOp::Exp:
      return handle(mx::exp(a, s));
    case UnaryOp::IsNan:
      return handle(mx::isnan(a, s));
    case UnaryOp::Log:
      return handle(mx::log(a, s));
    case UnaryOp::LogicalNot:
      return handle(mx::logical_not(a, s));
    case UnaryOp::Negative:
      return handle(mx::negative(a, s));
    case UnaryOp::Reciprocal:
      return handle(mx::reciprocal(a, s));
    case UnaryOp::Rsqrt:
      return handle(mx::rsqrt(a, s));
    case UnaryOp::Sigmoid:
      return handle(mx::sigmoid(a, s));
    case UnaryOp::Sin:
      return handle(mx::sin(a, s));
    case UnaryOp::Sqrt:
      return handle(mx::sqrt(a, s));
    case UnaryOp::Square:
      return handle(mx::square(a, s));
    case UnaryOp::Tanh:
      return handle(mx::tanh(a, s));
  }
  unknown("unary");
}

Handle binary(BinaryOp op, const MlxArray& a, const MlxArray& b) {
  auto s = here();
  switch (op) {
    case BinaryOp::Add:
      return handle(mx::add(a, b, s));
    case BinaryOp::Divide:
      return handle(mx::divide(a, b, s));
    case BinaryOp::Equal:
      return handle(mx::equal(a, b, s));
    case BinaryOp::Greater:
      return handle(mx::greater(a, b, s));
    case BinaryOp::GreaterEqual:
      return handle(mx::greater_equal(a, b, s));
    case BinaryOp::Less:
      return handle(mx::less(a, b, s));
    case BinaryOp::LessEqual:
      return handle(mx::less_equal(a, b, s));
    case BinaryOp::LogicalAnd:
      return handle(mx::logical_and(a, b, s));
    case BinaryOp::LogicalOr:
      return handle(mx::logical_or(a, b, s));
    case BinaryOp::Matmul:
      return handle(mx::matmul(a, b, s));
    case BinaryOp::Maximum:
      return handle(mx::maximum(a, b, s));
    case BinaryOp::Minimum:
      return handle(mx::minimum(a, b, s));
    case BinaryOp::Multiply:
      return handle(mx::multiply(a, b, s));
    case BinaryOp::NotEqual:
      return handle(mx::not_equal(a, b, s));
    case BinaryOp::Power:
      return handle(mx::power(a, b, s));
    case BinaryOp::Subtract:
      return handle(mx::subtract(a, b, s));
  }
  unknown("binary");
}

Handle reduce(ReduceOp op, const MlxArray& input, Ints axes, bool keepdims) {
  auto s = here();
  auto over = to_ints(axes);
  // If an array is not row-contiguous and the reduced axis has length 0, MLX iterates with an
  // uninitialized shape and strides (docs/upstream, section 7).
  mx::array a = input;
  if (a.size() == 0) a = mx::contiguous(a, false, s);
  switch (op) {
    case ReduceOp::All:
      return handle(mx::all(a, over, keepdims, s));
    case ReduceOp::Any:
      return handle(mx::any(a, over, keepdims, s));
    case ReduceOp::LogSumExp:
      return handle(mx::logsumexp(a, over, keepdims, s));
    case ReduceOp::Max:
      return handle(mx::max(a, over, keepdims, s));
    case ReduceOp::Mean:
      return handle(mx::mean(a, over, keepdims, s));
    case ReduceOp::Min:
      return handle(mx::min(a, over, keepdims, s));
    case ReduceOp::Prod:
      return handle(mx::prod(a, over, keepdims, s));
    case ReduceOp::Sum:
      return handle(mx::sum(a, over, keepdims, s));
    case ReduceOp::Var:
      return handle(mx::var(a, over, keepdims, 0, s));
  }
  unknown("reduce");
}

Handle reshape(const MlxArray& a, Ints shape) {
  return handle(mx::reshape(a, to_shape(shape), here()));
}

Handle transpose(const MlxArray& a, Ints axes) {
  return view(mx::transpose(a, to_ints(axes), here()));
}

Handle slice(const MlxArray& a, Ints start, Ints stop, Ints steps) {
  return view(mx::slice(a, to_shape(start), to_shape(stop), to_shape(steps), here()));
}

Handle slice_update(const MlxArray& a, const MlxArray& update, Ints start, Ints stop) {
  return handle(mx::slice_update(a, update, to_shape(start), to_shape(stop), here()));
}

Handle broadcast_to(const MlxArray& a, Ints shape) {
  return view(mx::broadcast_to(a, to_shape(shape), here()));
}

Handle expand_dims(const MlxArray& a, Ints axes) {
  return view(mx::expand_dims(a, to_ints(axes), here()));
}

Handle squeeze(const MlxArray& a, Ints axes) {
  return view(mx::squeeze(a, to_ints(axes), here()));
}

Handle astype(const MlxArray& a, Dtype dtype) {
  // MLX can fuse `mx::astype` with the ops around it, but cannot fuse this crate's `convert`.
  auto to = to_mlx(dtype);
  return handle(tracing() ? mx::astype(a, to, here()) : convert(a, to, mx::to_stream(here())));
}

Handle contiguous(const MlxArray& a) {
  return handle(mlx_primitives::contiguous(a, mx::to_stream(here())));
}

Handle concatenate(const ArrayList& arrays, int32_t axis) {
  return handle(mx::concatenate(arrays, axis, here()));
}

ListHandle split_at(const MlxArray& a, int32_t place, int32_t axis) {
  return handle(mx::split(a, mx::Shape{place}, axis, here()));
}

Handle stack(const ArrayList& arrays, int32_t axis) {
  return handle(mx::stack(arrays, axis, here()));
}

Handle take(const MlxArray& a, const MlxArray& indices, int32_t axis) {
  return handle(mlx_primitives::take(a, indices, axis, here()));
}

Handle take_along_axis(const MlxArray& a, const MlxArray& indices, int32_t axis) {
  return handle(mx::take_along_axis(a, indices, axis, here()));
}

Handle put_along_axis(
    const MlxArray& a, const MlxArray& indices, const MlxArray& values, int32_t axis) {
  return handle(mx::put_along_axis(a, indices, values, axis, here()));
}

Handle select(const MlxArray& condition, const MlxArray& a, const MlxArray& b) {
  return handle(mx::where(condition, a, b, here()));
}

Handle argmax(const MlxArray& a, int32_t axis, bool keepdims) {
  return handle(mx::argmax(a, axis, keepdims, here()));
}

Handle argsort(const MlxArray& a, int32_t axis) {
  return handle(mx::argsort(a, axis, here()));
}

Handle sort(const MlxArray& a, int32_t axis) {
  return handle(mx::sort(a, axis, here()));
}

Handle cumsum(const MlxArray& a, int32_t axis) {
  return handle(mx::cumsum(a, axis, false, true, here()));
}

Handle stop_gradient(const MlxArray& a) {
  return handle(mx::stop_gradient(a, here()));
}

void random_seed(uint64_t seed) {
  prepare();
  mx::random::seed(seed);
}

Handle random_key(uint64_t seed) {
  prepare();
  return handle(mx::random::key(seed));
}

Handle random_split(const MlxArray& key, int32_t count) {
  return handle(mx::random::split(key, count, here()));
}

Handle random_uniform(float low, float high, Ints shape, Dtype dtype, const MlxArray* key) {
  auto to = here();
  require_memory("uniform", shape, to_mlx(dtype));
  return handle(mx::random::uniform(
      mx::array(low), mx::array(high), to_shape(shape), to_mlx(dtype), optional(key), to));
}

Handle random_normal(Ints shape, Dtype dtype, const MlxArray* key) {
  auto to = here();
  require_memory("normal", shape, to_mlx(dtype));
  return handle(mx::random::normal(to_shape(shape), to_mlx(dtype), optional(key), to));
}

Handle random_randint(int32_t low, int32_t high, Ints shape, const MlxArray* key) {
  auto to = here();
  require_memory("randint", shape, mx::int32);
  return handle(mx::random::randint(
      mx::array(low), mx::array(high), to_shape(shape), mx::int32, optional(key), to));
}

Handle random_categorical(const MlxArray& logits, int32_t axis, const MlxArray* key) {
  return handle(mx::random::categorical(logits, axis, optional(key), here()));
}

} // namespace mlx_primitives::bridge
