#include "ops/reduce.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "../../metal/reduce.h"
#include "runtime/kernels.h"

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

Arrays Reduction::compose(const Arrays& inputs) {
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

Arrays Reduction::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  auto s = stream();
  auto& x = primals[0];
  bool linear = kind_ == ReductionKind::Sum || kind_ == ReductionKind::Mean;
  if (linear || s.device != mx::Device::cpu || simulating() || x.size() == 0) {
    return ComposedPrimitive::vjp(primals, cotangents, argnums, outputs);
  }
  Arrays inputs = {x, convert(cotangents[0], x.dtype(), s)};
  if (kind_ != ReductionKind::SumOfSquares) {
    inputs.push_back(outputs[0]);
  }
  for (auto& input : inputs) {
    input = row_contiguous(input, s);
  }
  auto primitive = std::make_shared<ReductionGrad>(s, kind_);
  return {mx::array(x.shape(), x.dtype(), std::move(primitive), std::move(inputs))};
}

Arrays ReductionGrad::compose(const Arrays& inputs) {
  auto s = stream();
  auto& x = inputs[0];
  auto shape = x.shape();
  if (inputs[1].size() == 1) {
    std::fill(shape.begin(), shape.end(), 1);
  } else {
    shape.back() = 1;
  }
  auto g = mx::reshape(inputs[1], shape, s);
  auto y = mx::reshape(inputs.back(), shape, s);
  switch (kind_) {
    case ReductionKind::SumOfSquares:
      return {mx::multiply(x, mx::multiply(mx::array(2, x.dtype()), g, s), s)};
    case ReductionKind::Norm:
      return {mx::multiply(x, mx::divide(g, y, s), s)};
    default: {
      auto equal = mx::equal(x, y, s);
      std::vector<int> axes = {-1};
      if (inputs[1].size() == 1) {
        axes.resize(x.ndim());
        std::iota(axes.begin(), axes.end(), 0);
      }
      auto count = mx::astype(mx::sum(equal, axes, true, s), x.dtype(), s);
      return {mx::multiply(mx::divide(g, count, s), mx::astype(equal, x.dtype(), s), s)};
    }
  }
}

bool ReductionGrad::is_equivalent(const mx::Primitive& other) const {
  return kind_ == static_cast<const ReductionGrad&>(other).kind_;
}

CpuCall ReductionGrad::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& x = inputs[0];
  return [element = element_of(x),
          kind = static_cast<uint8_t>(kind_),
          in = bytes(x),
          y = inputs.size() == 2 ? nullptr : bytes(inputs[2]),
          g = bytes(inputs[1]),
          to = bytes(outputs[0]),
          rows = inputs[1].size(),
          axis = x.size() / inputs[1].size()] {
    cpu::mlxp_cpu_reduce_grad(element, kind, in, y, g, to, rows, axis);
  };
}

std::pair<Arrays, std::vector<int>> Reduction::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  auto s = stream();
  auto x = mx::moveaxis(inputs[0], axes[0], 0, s);
  if (!all_) {
    return {{reduce(x, kind_, false, keepdims_, s)}, {0}};
  }
  // Reduce all axes of a batch entry: merge them into the last axis. With keepdims, axes of length
  // 1 in front of it keep the number of axes.
  bool kept = keepdims_ && x.ndim() > 1;
  mx::Shape shape(kept ? x.ndim() : 2, 1);
  shape.front() = x.shape(0);
  shape.back() = std::accumulate(x.shape().begin() + 1, x.shape().end(), 1, std::multiplies<>());
  return {{reduce(mx::reshape(x, shape, s), kind_, false, kept, s)}, {0}};
}

bool Reduction::is_equivalent(const mx::Primitive& other) const {
  auto& reduction = static_cast<const Reduction&>(other);
  return kind_ == reduction.kind_ && all_ == reduction.all_ && keepdims_ == reduction.keepdims_;
}

std::vector<mx::Shape> Reduction::output_shapes(const Arrays& inputs) {
  return {reduced(inputs[0].shape(), all_, keepdims_)};
}

namespace {

/**
 * How each row is cut into pieces. A threadgroup or, for short pieces, a SIMD group reduces one
 * piece. Several pieces need a second dispatch.
 */
struct ReduceSplit {
  uint32_t pieces;
  uint32_t piece;
};

ReduceSplit split_reduce(uint64_t rows, uint64_t axis) {
  constexpr uint64_t countable = 1u << 31; // kernels index a piece in 32 bits
  bool whole = axis <= 2 * REDUCE_PIECE || (rows >= REDUCE_MANY_ROWS && axis <= countable);
  if (whole) {
    return {1, static_cast<uint32_t>(axis)};
  }
  // The size of a piece is a multiple of SIMD_ROW, so that every piece is aligned like its row.
  uint64_t piece = std::max<uint64_t>(REDUCE_PIECE, ceil_div(axis, REDUCE_PIECES));
  piece = ceil_div(piece, SIMD_ROW) * SIMD_ROW;
  if (piece > countable) {
    throw std::invalid_argument("[reduce] more elements than a Metal kernel can count.");
  }
  return {static_cast<uint32_t>(ceil_div(axis, piece)), static_cast<uint32_t>(piece)};
}

/** Plans the reduction of each piece of `from` to one number of `to`. */
Dispatch fold(
    std::string_view kind,
    const mx::array& from,
    const mx::array& to,
    const ReduceParams& params,
    uint32_t max_threads) {
  max_threads = whole_simds("reduce", max_threads);
  uint32_t count = grid_count("reduce", "pieces", uint64_t{params.rows} * params.pieces);
  uint32_t length = params.piece;
  auto kernel = [&](std::string_view form) {
    auto types = type_suffix(from) + type_suffix(to);
    return "mlxp_reduce_" + std::string(form) + "_" + std::string(kind) + types;
  };
  Launch launch;
  if (from.dtype() == to.dtype() && length <= REDUCE_SIMD_ROW) {
    uint32_t together = std::min<uint32_t>(ROWS_PER_GROUP, max_threads / SIMD_WIDTH);
    together = std::clamp<uint32_t>(count, 1, together);
    auto groups = static_cast<uint32_t>(ceil_div(count, together));
    launch = {kernel("simd"), {groups, 1, 1}, {together * SIMD_WIDTH, 1, 1}};
  } else {
    uint64_t quads = std::clamp<uint64_t>(ceil_div(length, READS), 1, max_threads);
    uint32_t threads = round_up(static_cast<uint32_t>(quads), SIMD_WIDTH);
    // Metal requires that the size of threadgroup memory is a multiple of 16 bytes.
    uint32_t bytes = round_up(REDUCE_SLOTS * (threads / SIMD_WIDTH) * sizeof(float), 16);
    launch = {kernel("group"), {count, 1, 1}, {threads, 1, 1}, bytes};
  }
  // Metal has no empty buffers. So bind the output in place of an empty input, which the kernel
  // does not read.
  return {"reduce", launch, {from.size() ? from : to}, {to}, params};
}

} // namespace

std::vector<Dispatch> Reduction::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto& x = inputs[0];
  auto& out = outputs[0];
  uint64_t axis = x.size() / out.size();
  auto rows = grid_count("reduce", "rows", out.size());
  bool squared = kind_ == ReductionKind::SumOfSquares || kind_ == ReductionKind::Norm;
  auto merge = kind_ == ReductionKind::Max ? "max" : "sum";
  auto kind = squared ? "squares" : merge;
  // Multiply by this rounded reciprocal, as MLX does.
  float scale = kind_ == ReductionKind::Mean ? static_cast<float>(1.0 / axis) : 1.0f;
  uint32_t root = kind_ == ReductionKind::Norm;

  auto [pieces, piece] = split_reduce(rows, axis);
  if (pieces == 1) {
    return {fold(kind, x, out, {axis, rows, 1, piece, scale, root}, max_threads)};
  }
  auto partial = temporary({static_cast<int>(rows), static_cast<int>(pieces)}, mx::float32);
  return {
      fold(kind, x, partial, {axis, rows, pieces, piece, 1.0f, 0}, max_threads),
      fold(merge, partial, out, {pieces, rows, 1, pieces, scale, root}, max_threads)};
}

CpuCall Reduction::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& x = inputs[0];
  auto& out = outputs[0];
  return
      [element = element_of(x),
       kind = static_cast<uint8_t>(kind_),
       in = bytes(x),
       to = bytes(out),
       rows = out.size(),
       axis = x.size() / out.size()] { cpu::mlxp_cpu_reduce(element, kind, in, to, rows, axis); };
}

} // namespace mlx_primitives
