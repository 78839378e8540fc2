#include "ops/rms_norm.h"

#include "../../metal/rms_norm.h"
#include "ops/norm_grad.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {
constexpr auto rms_norm_op = "rms_norm";

/** x in float32, and the reciprocal of its root mean square. `jvp` uses both. */
struct Normalizer {
  mx::array x;
  mx::array inverse;

  Normalizer(const mx::array& input, float eps, mx::Stream s)
      : x(mx::astype(input, mx::float32, s)),
        inverse(mx::rsqrt(mx::add(mx::mean(mx::square(x, s), -1, true, s), mx::array(eps), s), s)) {
  }

  /** The directional derivative of x * inverse along t. */
  mx::array project(const mx::array& t, mx::Stream s) const {
    auto along = mx::mean(mx::multiply(x, t, s), -1, true, s);
    auto cube = mx::multiply(inverse, mx::square(inverse, s), s);
    auto radial = mx::multiply(x, mx::multiply(cube, along, s), s);
    return mx::subtract(mx::multiply(t, inverse, s), radial, s);
  }
};
} // namespace

mx::array rms_norm(
    const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::StreamOrDevice s_) {
  require_last_axis(rms_norm_op, x);
  if (weight && (weight->ndim() != 1 || weight->shape(0) != x.shape(-1))) {
    refuse(rms_norm_op, "expected weight of shape (", x.shape(-1), "), got ", weight->shape());
  }
  auto dtype = weight ? mx::result_type(x, *weight) : x.dtype();
  require_kernel_dtype(rms_norm_op, dtype);

  auto s = mx::to_stream(s_);
  Arrays inputs = {row_contiguous(convert(x, dtype, s), s)};
  if (weight) {
    inputs.push_back(row_contiguous(convert(*weight, dtype, s), s));
  }
  return mx::array(x.shape(), dtype, std::make_shared<RmsNorm>(s, eps), std::move(inputs));
}

Arrays RmsNorm::compose(const Arrays& inputs) {
  auto weight = inputs.size() > 1 ? std::optional(inputs[1]) : std::nullopt;
  return {mx::fast::rms_norm(inputs[0], weight, eps_, stream())};
}

Arrays RmsNorm::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays&) {
  auto affine = NormAffine::of(primals, 1, primals.size() > 1, false);
  return norm_vjp({false, eps_}, primals[0], affine, cotangents[0], {}, argnums, 1, stream());
}

Arrays RmsNorm::jvp(
    const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) {
  auto s = stream();
  Normalizer n(primals[0], eps_, s);
  // The sum begins with its first term. If it began with zeros, a shapeless compiled function would
  // fix their shape.
  std::optional<mx::array> total;
  for (size_t i = 0; i < argnums.size(); ++i) {
    auto t = mx::astype(tangents[i], mx::float32, s);
    if (argnums[i] == 1) {
      t = mx::multiply(mx::multiply(n.x, n.inverse, s), t, s);
    } else {
      t = n.project(t, s);
      if (primals.size() > 1) {
        t = mx::multiply(t, mx::astype(primals[1], mx::float32, s), s);
      }
    }
    total = total ? mx::add(*total, t, s) : t;
  }
  return {mx::astype(*total, primals[0].dtype(), s)};
}

std::pair<Arrays, std::vector<int>> RmsNorm::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  auto s = stream();
  auto x = batch_first(inputs[0], axes[0], batch_size(inputs, axes), s);
  if (inputs.size() == 1 || axes[1] < 0) {
    auto weight = inputs.size() > 1 ? std::optional(inputs[1]) : std::nullopt;
    return {{rms_norm(x, weight, eps_, s)}, {0}};
  }
  // Each batch entry has a separate weight. It multiplies the rounded, normalized x, as in the
  // kernel.
  auto weight = mx::moveaxis(inputs[1], axes[1], 0, s);
  mx::Shape shape(x.ndim(), 1);
  shape.front() = weight.shape(0);
  shape.back() = weight.shape(1);
  auto normed = rms_norm(x, std::nullopt, eps_, s);
  return {{mx::multiply(normed, mx::reshape(weight, shape, s), s)}, {0}};
}

bool RmsNorm::is_equivalent(const mx::Primitive& other) const {
  return eps_ == static_cast<const RmsNorm&>(other).eps_;
}

// runtime/primitive.cpp calls `dispatches` on a GPU's stream, and `cpu_call` on a CPU's stream.
std::vector<Dispatch> RmsNorm::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto& x = inputs[0];
  Rows rows(x);
  bool weighted = inputs.size() > 1;
  auto suffix = (weighted ? "_weighted" : "") + type_suffix(x);
  auto launch = plan_rows(rms_norm_op, suffix, rows, RMS_NORM_SLOTS, max_threads);
  auto& weight = weighted ? inputs[1] : x; // a buffer must be bound
  return {
      {rms_norm_op, launch, {x, weight}, outputs, RmsNormParams{rows.narrow(), rows.axis, eps_}}};
}

CpuCall RmsNorm::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& x = inputs[0];
  return
      [element = element_of(x),
       in = bytes(x),
       weight = inputs.size() > 1 ? bytes(inputs[1]) : nullptr,
       to = bytes(outputs[0]),
       rows = Rows(x),
       eps = eps_] { cpu::mlxp_cpu_rms_norm(element, in, weight, to, rows.count, rows.axis, eps); };
}

} // namespace mlx_primitives
