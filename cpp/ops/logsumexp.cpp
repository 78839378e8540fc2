#include "ops/logsumexp.h"

#include "../../metal/logsumexp.h"
#include "ops/softmax.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {

/** Checks x and makes it row-contiguous and floating, for logsumexp and for log-softmax. */
mx::array checked(const char* op, const mx::array& x, mx::Stream s) {
  require_last_axis(op, x);
  auto dtype = mx::issubdtype(x.dtype(), mx::inexact) ? x.dtype() : mx::float32;
  require_kernel_dtype(op, dtype);
  return row_contiguous(convert(x, dtype, s), s);
}

/** Builds a LogSumExp of x. The last axis of the result has length 1. */
mx::array reduced(const mx::array& x, mx::Stream s) {
  auto shape = x.shape();
  shape.back() = 1;
  return mx::array(shape, x.dtype(), std::make_shared<LogSumExp>(s), {x});
}

mx::array wide(const mx::array& x, mx::Stream s) {
  return mx::astype(x, mx::float32, s);
}

/** Builds the gradient of logsumexp or of log-softmax with respect to x. */
mx::array gradient(const mx::array& x, const mx::array& g, bool subtracted, mx::Stream s) {
  Arrays inputs = {row_contiguous(x, s), row_contiguous(g, s)};
  return mx::array(
      x.shape(), x.dtype(), std::make_shared<LogSumExpGrad>(s, subtracted), std::move(inputs));
}

/** The mean of `weights` over each row in float32, weighted by the softmax of x. */
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

Arrays LogSumExp::compose(const Arrays& inputs) {
  return {mx::logsumexp(inputs[0], -1, true, stream())};
}

Arrays LogSumExp::vjp(
    const Arrays& primals, const Arrays& cotangents, const std::vector<int>&, const Arrays&) {
  return {gradient(primals[0], cotangents[0], false, stream())};
}

Arrays LogSumExp::jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>&) {
  return {mx::astype(mean(primals[0], tangents[0], stream()), primals[0].dtype(), stream())};
}

std::pair<Arrays, std::vector<int>> LogSumExp::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  auto x = batch_first(inputs[0], axes[0], batch_size(inputs, axes), stream());
  return {{reduced(row_contiguous(x, stream()), stream())}, {0}};
}

bool LogSumExp::is_equivalent(const mx::Primitive&) const {
  return true;
}

std::vector<mx::Shape> LogSumExp::output_shapes(const Arrays& inputs) {
  auto shape = inputs[0].shape();
  shape.back() = 1;
  return {shape};
}

Arrays LogSoftmax::compose(const Arrays& inputs) {
  auto s = stream();
  return {mx::subtract(inputs[0], mx::logsumexp(inputs[0], -1, true, s), s)};
}

Arrays LogSoftmax::vjp(
    const Arrays& primals, const Arrays& cotangents, const std::vector<int>&, const Arrays&) {
  return {gradient(primals[0], cotangents[0], true, stream())};
}

Arrays LogSoftmax::jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>&) {
  auto s = stream();
  auto along = mean(primals[0], tangents[0], s);
  return {mx::astype(mx::subtract(wide(tangents[0], s), along, s), primals[0].dtype(), s)};
}

std::pair<Arrays, std::vector<int>> LogSoftmax::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  auto x = batch_first(inputs[0], axes[0], batch_size(inputs, axes), stream());
  return {{log_softmax(x, stream())}, {0}};
}

bool LogSoftmax::is_equivalent(const mx::Primitive&) const {
  return true;
}

Arrays LogSumExpGrad::compose(const Arrays& inputs) {
  auto s = stream();
  auto shares = mx::softmax(wide(inputs[0], s), -1, true, s);
  auto g = wide(inputs[1], s);
  auto result = subtracted_ ? mx::subtract(g, mx::multiply(shares, mx::sum(g, -1, true, s), s), s)
                            : mx::multiply(shares, g, s);
  return {mx::astype(result, inputs[0].dtype(), s)};
}

std::pair<Arrays, std::vector<int>> LogSumExpGrad::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  auto s = stream();
  int size = batch_size(inputs, axes);
  auto mapped = [&](int i) { return batch_first(inputs[i], axes[i], size, s); };
  return {{gradient(mapped(0), mapped(1), subtracted_, s)}, {0}};
}

bool LogSumExpGrad::is_equivalent(const mx::Primitive& other) const {
  return subtracted_ == static_cast<const LogSumExpGrad&>(other).subtracted_;
}

std::vector<Dispatch> LogSumExpGrad::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto& x = inputs[0];
  Rows rows(x);
  auto quads = static_cast<uint32_t>(ceil_div(rows.axis, READS));
  auto threads = std::min(whole_simds("logsumexp", max_threads), round_up(quads, SIMD_WIDTH));
  uint32_t bytes = LOGSUMEXP_GRAD_SLOTS * threads / SIMD_WIDTH * uint32_t{sizeof(float)};
  Launch launch{
      std::string("mlxp_logsumexp_grad") + (subtracted_ ? "_subtracted" : "") + type_suffix(x),
      {grid_count("logsumexp", "rows", rows.count), 1, 1},
      {threads, 1, 1},
      round_up(bytes, 16)};
  return {{"logsumexp", launch, inputs, outputs, LogSumExpParams{rows.narrow(), rows.axis}}};
}

CpuCall LogSumExpGrad::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  return [subtracted = subtracted_,
          element = element_of(outputs[0]),
          x = bytes(inputs[0]),
          g = bytes(inputs[1]),
          to = bytes(outputs[0]),
          rows = Rows(inputs[0])] {
    cpu::mlxp_cpu_logsumexp_grad(element, x, g, to, rows.count, rows.axis, subtracted);
  };
}

namespace {

/**
 * If `subtract` is true, the kernel subtracts the logarithm from the row, which gives log-softmax.
 */
std::vector<Dispatch> dispatch(
    const Arrays& inputs, const Arrays& outputs, bool subtract, uint32_t max_threads) {
  auto& x = inputs[0];
  Rows rows(x);
  auto suffix = (subtract ? "_subtracted" : "") + type_suffix(x);
  auto launch = plan_rows("logsumexp", suffix, rows, LOGSUMEXP_SLOTS, max_threads);
  if (!subtract && rows.axis > SIMD_ROW) {
    // The kernel reads each row only once, so it handles rows of every length.
    launch.kernel = "mlxp_logsumexp_looped" + suffix;
  }
  return {{"logsumexp", launch, {x}, outputs, LogSumExpParams{rows.narrow(), rows.axis}}};
}

CpuCall call(const mx::array& x, mx::array& out, bool subtract) {
  auto* run = subtract ? cpu::mlxp_cpu_log_softmax : cpu::mlxp_cpu_logsumexp;
  return [run, element = element_of(x), in = bytes(x), to = bytes(out), rows = Rows(x)] {
    run(element, in, to, rows.count, rows.axis);
  };
}

} // namespace

std::vector<Dispatch> LogSumExp::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  return dispatch(inputs, outputs, false, max_threads);
}

CpuCall LogSumExp::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  return call(inputs[0], outputs[0], false);
}

std::vector<Dispatch> LogSoftmax::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  return dispatch(inputs, outputs, true, max_threads);
}

CpuCall LogSoftmax::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  return call(inputs[0], outputs[0], true);
}

} // namespace mlx_primitives
