#include "ops/reduce.h"

#include <functional>
#include <numeric>

#include "plan/reduce.h"

namespace mlx_primitives {

namespace {

const char* op_of(ReductionKind kind) {
  switch (kind) {
    case ReductionKind::Sum:
      return "sum";
    case ReductionKind::Mean:
      return "mean";
    case ReductionKind::Max:
      return "max";
    case ReductionKind::SumOfSquares:
      return "sum_of_squares";
    case ReductionKind::Norm:
      return "norm";
  }
  refuse("reduce", "expected a known kind, got ", static_cast<int>(kind));
}

mx::Shape reduced(mx::Shape shape, bool all, bool keepdims) {
  if (all) {
    return keepdims ? mx::Shape(shape.size(), 1) : mx::Shape{};
  }
  if (keepdims) {
    shape.back() = 1;
  } else {
    shape.pop_back();
  }
  return shape;
}

} // namespace

mx::array reduce(
    const mx::array& x, ReductionKind kind, bool all, bool keepdims, mx::StreamOrDevice s_) {
  auto op = op_of(kind);
  if (!all && x.ndim() == 0) {
    refuse(op, "expected an array of rank 1 or more, got a scalar");
  }
  require_kernel_dtype(op, x.dtype());
  if (kind == ReductionKind::Max && (all ? x.size() : size_t(x.shape(-1))) == 0) {
    refuse(op, "expected at least one element to choose from, got shape ", x.shape());
  }
  auto s = mx::to_stream(s_);
  return mx::array(
      reduced(x.shape(), all, keepdims),
      x.dtype(),
      std::make_shared<Reduction>(s, kind, all, keepdims),
      {row_contiguous(x, s)});
}

std::vector<mx::array> Reduction::compose(const std::vector<mx::array>& inputs) {
  auto s = stream();
  auto& x = inputs[0];
  std::vector<int> axes = {-1};
  if (all_) {
    axes.resize(x.ndim());
    std::iota(axes.begin(), axes.end(), 0);
  }
  switch (kind_) {
    case ReductionKind::Sum:
      return {mx::sum(x, axes, keepdims_, s)};
    case ReductionKind::Mean:
      return {mx::mean(x, axes, keepdims_, s)};
    case ReductionKind::Max:
      return {mx::max(x, axes, keepdims_, s)};
    case ReductionKind::SumOfSquares:
      return {mx::sum(mx::square(x, s), axes, keepdims_, s)};
    case ReductionKind::Norm:
      return {mx::sqrt(mx::sum(mx::square(x, s), axes, keepdims_, s), s)};
  }
  refuse(name(), "expected a known kind, got ", static_cast<int>(kind_));
}

std::pair<std::vector<mx::array>, std::vector<int>> Reduction::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  auto s = stream();
  auto x = mx::moveaxis(inputs[0], axes[0], 0, s);
  if (!all_) {
    return {{reduce(x, kind_, false, keepdims_, s)}, {0}};
  }
  // All axes of an entry become the last one; before it, so many that keepdims leaves its rank.
  bool kept = keepdims_ && x.ndim() > 1;
  mx::Shape shape(kept ? x.ndim() : 2, 1);
  shape.front() = x.shape(0);
  shape.back() = std::accumulate(x.shape().begin() + 1, x.shape().end(), 1, std::multiplies<>());
  return {{reduce(mx::reshape(x, shape, s), kind_, false, kept, s)}, {0}};
}

Cost Reduction::cost(
    const std::vector<mx::array>& inputs, const std::vector<mx::array>& outputs) const {
  auto cost = FusedPrimitive::cost(inputs, outputs);
  if (uint64_t rows = outputs[0].size()) {
    uint64_t pieces = split_reduce(rows, inputs[0].size() / rows).pieces;
    if (pieces > 1) {
      cost.dispatches = 2;
      cost.device_bytes += 2 * sizeof(float) * rows * pieces;
    }
  }
  return cost;
}

bool Reduction::is_equivalent(const mx::Primitive& other) const {
  auto& reduction = static_cast<const Reduction&>(other);
  return kind_ == reduction.kind_ && all_ == reduction.all_ && keepdims_ == reduction.keepdims_;
}

std::vector<mx::Shape> Reduction::output_shapes(const std::vector<mx::array>& inputs) {
  return {reduced(inputs[0].shape(), all_, keepdims_)};
}

} // namespace mlx_primitives
