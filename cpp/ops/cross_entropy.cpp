#include "ops/cross_entropy.h"

#include <cmath>
#include <limits>

#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {
constexpr auto cross_entropy_op = "cross_entropy";

/** Builds a node with two outputs: the losses, and the statistics that the gradient needs. */
Arrays node(const mx::array& x, const mx::array& targets, CrossEntropyTargets how, mx::Stream s) {
  auto kept = targets.shape();
  kept.push_back(2);
  return mx::array::make_arrays(
      {targets.shape(), kept},
      {x.dtype(), mx::float32},
      std::make_shared<CrossEntropy>(s, how),
      {row_contiguous(x, s), row_contiguous(targets, s)});
}

mx::array gradient(Arrays inputs, CrossEntropyTargets how, mx::Stream s) {
  for (auto& input : inputs) {
    input = row_contiguous(input, s);
  }
  auto shape = inputs[0].shape();
  auto dtype = inputs[0].dtype();
  return mx::array(shape, dtype, std::make_shared<CrossEntropyGrad>(s, how), std::move(inputs));
}

Arrays mapped(const Arrays& inputs, const std::vector<int>& axes, mx::Stream s) {
  int size = batch_size(inputs, axes);
  Arrays result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    result.push_back(batch_first(inputs[i], axes[i], size, s));
  }
  return result;
}

/**
 * `valid` marks the targets that are classes, and `counts` the rows that are not ignored. `classes`
 * has the targets, with 0 in place of invalid ones.
 */
struct TargetMasks {
  mx::array valid;
  mx::array counts;
  mx::array classes;
};

TargetMasks target_masks(
    const mx::array& targets, int classes, CrossEntropyTargets how, mx::Stream s) {
  auto zero = mx::array(0);
  auto valid = mx::logical_and(
      mx::greater_equal(targets, zero, s), mx::less(targets, mx::array(classes), s), s);
  auto counts =
      how.ignored ? mx::not_equal(targets, mx::array(*how.ignored), s) : mx::ones_like(valid, s);
  return {valid, counts, mx::expand_dims(mx::where(valid, targets, zero, s), -1, s)};
}

} // namespace

mx::array cross_entropy(
    const mx::array& x,
    const mx::array& targets,
    float smoothing,
    std::optional<int> ignored,
    mx::StreamOrDevice s_) {
  require_last_axis(cross_entropy_op, x);
  require_kernel_dtype(cross_entropy_op, x.dtype());
  if (!mx::issubdtype(targets.dtype(), mx::integer)) {
    refuse(cross_entropy_op, "expected targets of an integer dtype, got ", targets.dtype());
  }
  auto expected = x.shape();
  expected.pop_back();
  if (targets.shape() != expected) {
    refuse(cross_entropy_op, "expected targets of shape ", expected, ", got ", targets.shape());
  }
  if (!(smoothing >= 0.0f && smoothing < 1.0f)) {
    refuse(cross_entropy_op, "expected label smoothing in [0, 1), got ", smoothing);
  }
  auto s = mx::to_stream(s_);
  return node(x, clamp_to_int32(targets, s), {smoothing, ignored}, s)[0];
}

Arrays CrossEntropy::compose(const Arrays& inputs) {
  auto s = stream();
  int classes = inputs[0].shape(-1);
  auto row = target_masks(inputs[1], classes, targets_, s);
  auto maximum = mx::stop_gradient(mx::max(inputs[0], -1, true, s), s);
  auto x = mx::subtract(inputs[0], maximum, s);
  auto score = mx::squeeze(mx::take_along_axis(x, row.classes, -1, s), -1, s);
  auto log = mx::logsumexp(x, -1, false, s);
  auto loss = mx::subtract(log, score, s);
  if (targets_.smoothing > 0.0f) {
    auto share = [&](float value) { return mx::array(value, x.dtype()); };
    score = mx::multiply(score, share(1.0f - targets_.smoothing), s);
    auto mean = mx::multiply(mx::mean(x, -1, false, s), share(targets_.smoothing), s);
    loss = mx::subtract(mx::subtract(log, score, s), mean, s);
  }
  auto nothing = [&](float value) { return mx::array(value, x.dtype()); };
  loss = mx::where(row.valid, loss, nothing(std::nanf("")), s);
  loss = mx::where(row.counts, loss, nothing(0.0f), s);
  auto sum = mx::exp(mx::astype(mx::expand_dims(log, -1, s), mx::float32, s), s);
  auto kept = mx::concatenate({mx::astype(maximum, mx::float32, s), sum}, -1, s);
  return {loss, mx::stop_gradient(kept, s)};
}

Arrays CrossEntropy::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  Arrays result;
  for (int argnum : argnums) {
    if (argnum == 0) {
      result.push_back(
          gradient({primals[0], primals[1], cotangents[0], outputs[1]}, targets_, stream()));
    } else {
      result.push_back(mx::zeros_like(primals[1], stream()));
    }
  }
  return result;
}

std::pair<Arrays, std::vector<int>> CrossEntropy::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  auto all = mapped(inputs, axes, stream());
  return {node(all[0], all[1], targets_, stream()), {0, 0}};
}

bool CrossEntropy::is_equivalent(const mx::Primitive& other) const {
  return targets_ == static_cast<const CrossEntropy&>(other).targets_;
}

std::vector<mx::Shape> CrossEntropy::output_shapes(const Arrays& inputs) {
  auto kept = inputs[1].shape();
  kept.push_back(2);
  return {inputs[1].shape(), kept};
}

Arrays CrossEntropyGrad::compose(const Arrays& inputs) {
  auto s = stream();
  int classes = inputs[0].shape(-1);
  auto row = target_masks(inputs[1], classes, targets_, s);
  auto shares = mx::softmax(mx::astype(inputs[0], mx::float32, s), -1, true, s);
  auto hit = mx::equal(mx::arange(classes, s), row.classes, s);
  float spread = targets_.smoothing / static_cast<float>(classes);
  auto expected =
      mx::where(hit, mx::array(1.0f - targets_.smoothing + spread), mx::array(spread), s);
  auto weight =
      mx::where(row.valid, mx::astype(inputs[2], mx::float32, s), mx::array(std::nanf("")), s);
  auto result = mx::multiply(mx::subtract(shares, expected, s), mx::expand_dims(weight, -1, s), s);
  result = mx::where(mx::expand_dims(row.counts, -1, s), result, mx::array(0.0f), s);
  return {mx::astype(result, inputs[0].dtype(), s)};
}

std::pair<Arrays, std::vector<int>> CrossEntropyGrad::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  return {{gradient(mapped(inputs, axes, stream()), targets_, stream())}, {0}};
}

bool CrossEntropyGrad::is_equivalent(const mx::Primitive& other) const {
  return targets_ == static_cast<const CrossEntropyGrad&>(other).targets_;
}

namespace {

/**
 * `stats` are the softmax statistics of the rows: an output of the loss, and an input of the
 * gradient, which does not change them.
 */
cpu::CrossEntropyCall call_of(
    const Arrays& inputs,
    const mx::array& stats,
    mx::array& out,
    const CrossEntropyTargets& rules) {
  auto& x = inputs[0];
  Rows rows(x);
  return {
      .element = element_of(x),
      .ignores = rules.ignored.has_value(),
      .ignored = rules.ignored.value_or(0),
      .smoothing = rules.smoothing,
      .rows = rows.count,
      .classes = rows.axis,
      .x = bytes(x),
      .targets = inputs[1].data<int32_t>(),
      .stats = const_cast<float*>(stats.data<float>()),
      .g = inputs.size() > 2 ? bytes(inputs[2]) : nullptr,
      .out = bytes(out)};
}

} // namespace

std::vector<Dispatch> CrossEntropy::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto& x = inputs[0];
  Rows rows(x);
  auto launch = plan_rows(cross_entropy_op, type_suffix(x), rows, CROSS_ENTROPY_SLOTS, max_threads);
  if (rows.axis > SIMD_ROW) {
    // The kernel reads each row only once, so it handles rows of every length.
    launch.kernel = "mlxp_cross_entropy_looped" + type_suffix(x);
  }
  return {{cross_entropy_op, launch, inputs, outputs, targets_.params(rows.narrow(), rows.axis)}};
}

CpuCall CrossEntropy::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto call = call_of(inputs, outputs[1], outputs[0], targets_);
  return [call] { cpu::mlxp_cpu_cross_entropy(call); };
}

std::vector<Dispatch> CrossEntropyGrad::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto& x = inputs[0];
  Rows rows(x);
  auto launch = plan_rows("cross_entropy_grad", type_suffix(x), rows, 0, max_threads);
  if (rows.axis > SIMD_ROW) {
    // The statistics of the row are known, so several threadgroups can share a long row.
    constexpr uint32_t enough = 256; // threads: more would only wait for each other
    constexpr uint32_t share = static_cast<uint32_t>(READS) * CROSS_ENTROPY_QUADS;
    auto each = static_cast<uint32_t>(ceil_div(rows.axis, share));
    uint32_t threads = std::min({launch.group[0], enough, round_up(each, SIMD_WIDTH)});
    launch.kernel = "mlxp_cross_entropy_grad_row" + type_suffix(x);
    launch.grid[1] = static_cast<uint32_t>(ceil_div(each, threads));
    launch.group[0] = threads;
  }
  auto params = targets_.params(rows.narrow(), rows.axis);
  return {{cross_entropy_op, launch, {x, inputs[1], inputs[3], inputs[2]}, outputs, params}};
}

CpuCall CrossEntropyGrad::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto call = call_of(inputs, inputs[3], outputs[0], targets_);
  return [call] { cpu::mlxp_cpu_cross_entropy_grad(call); };
}

} // namespace mlx_primitives
