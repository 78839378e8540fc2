#include "ops/softmax.h"

#include "../../metal/softmax.h"
#include "ops/masked_softmax.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {
constexpr auto softmax_op = "softmax";

/** The derivative of a softmax y along t: y * (t - sum(y * t)). */
mx::array project(const mx::array& y_, const mx::array& t_, mx::Stream s) {
  auto y = mx::astype(y_, mx::float32, s);
  auto yt = mx::multiply(y, mx::astype(t_, mx::float32, s), s);
  auto result = mx::subtract(yt, mx::multiply(y, mx::sum(yt, -1, true, s), s), s);
  return mx::astype(result, y_.dtype(), s);
}
} // namespace

mx::array softmax(const mx::array& x, mx::StreamOrDevice s_) {
  require_last_axis(softmax_op, x);
  auto dtype = mx::issubdtype(x.dtype(), mx::inexact) ? x.dtype() : mx::float32;
  require_kernel_dtype(softmax_op, dtype);
  auto s = mx::to_stream(s_);
  Arrays inputs = {row_contiguous(convert(x, dtype, s), s)};
  return mx::array(x.shape(), dtype, std::make_shared<Softmax>(s), std::move(inputs));
}

Arrays Softmax::compose(const Arrays& inputs) {
  return {mx::softmax(inputs[0], -1, true, stream())};
}

Arrays Softmax::vjp(
    const Arrays&, const Arrays& cotangents, const std::vector<int>&, const Arrays& outputs) {
  return {softmax_gradient(outputs[0], cotangents[0], stream())};
}

Arrays Softmax::jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>&) {
  return {project(softmax(primals[0], stream()), tangents[0], stream())};
}

std::pair<Arrays, std::vector<int>> Softmax::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  auto x = batch_first(inputs[0], axes[0], batch_size(inputs, axes), stream());
  return {{softmax(x, stream())}, {0}};
}

bool Softmax::is_equivalent(const mx::Primitive&) const {
  return true;
}

std::vector<Dispatch> Softmax::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto& x = inputs[0];
  Rows rows(x);
  auto launch = plan_rows(softmax_op, type_suffix(x), rows, SOFTMAX_SLOTS, max_threads);
  return {{softmax_op, launch, {x}, outputs, SoftmaxParams{rows.narrow(), rows.axis}}};
}

CpuCall Softmax::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& x = inputs[0];
  Rows rows(x);
  return [element = element_of(x), in = bytes(x), to = bytes(outputs[0]), rows] {
    cpu::mlxp_cpu_softmax(element, in, to, rows.count, rows.axis);
  };
}

} // namespace mlx_primitives
