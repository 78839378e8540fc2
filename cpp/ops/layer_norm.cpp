#include "ops/layer_norm.h"

#include "../../metal/layer_norm.h"
#include "ops/norm_grad.h"
#include "runtime/encoder.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {
constexpr auto layer_norm_op = "layer_norm";
} // namespace

NormAffine NormAffine::of(const Arrays& inputs, size_t first, bool weighted, bool biased) {
  NormAffine affine;
  if (weighted) {
    affine.weight = inputs[first];
  }
  if (biased) {
    affine.bias = inputs[first + weighted];
  }
  return affine;
}

void NormAffine::require(const char* name, const mx::array& x) const {
  auto fits = [&](const std::optional<mx::array>& vector, const char* what) {
    if (vector && (vector->ndim() != 1 || vector->shape(0) != x.shape(-1))) {
      refuse(name, "expected ", what, " of shape (", x.shape(-1), "), got ", vector->shape());
    }
  };
  fits(weight, "weight");
  fits(bias, "bias");
}

void NormAffine::push(Arrays& inputs, mx::Dtype dtype, mx::Stream s) const {
  for (auto& vector : {weight, bias}) {
    if (vector) {
      inputs.push_back(row_contiguous(convert(*vector, dtype, s), s));
    }
  }
}

NormAffine NormAffine::batched(int weight_axis, int bias_axis, size_t rank, mx::Stream s) const {
  auto batched = [&](const std::optional<mx::array>& vector, int axis) {
    if (!vector || axis < 0) {
      return vector;
    }
    auto rows = mx::moveaxis(*vector, axis, 0, s);
    mx::Shape shape(rank, 1);
    shape.front() = rows.shape(0);
    shape.back() = rows.shape(1);
    return std::optional(mx::reshape(rows, shape, s));
  };
  return {batched(weight, weight_axis), batched(bias, bias_axis)};
}

mx::array NormAffine::apply(mx::array y, mx::Stream s) const {
  if (weight) {
    y = mx::multiply(y, *weight, s);
  }
  return bias ? mx::add(y, *bias, s) : y;
}

mx::array layer_norm(
    const mx::array& x,
    const std::optional<mx::array>& weight,
    const std::optional<mx::array>& bias,
    float eps,
    mx::StreamOrDevice s_) {
  require_last_axis(layer_norm_op, x);
  NormAffine affine{weight, bias};
  affine.require(layer_norm_op, x);
  // As in MLX, the type of the bias affects the result's type only if there is a weight.
  auto dtype = !weight ? x.dtype()
               : bias  ? mx::result_type(x, *weight, *bias)
                       : mx::result_type(x, *weight);
  require_kernel_dtype(layer_norm_op, dtype);

  auto s = mx::to_stream(s_);
  Arrays inputs = {row_contiguous(convert(x, dtype, s), s)};
  affine.push(inputs, dtype, s);
  auto primitive = std::make_shared<LayerNorm>(s, weight.has_value(), bias.has_value(), eps);
  return mx::array(x.shape(), dtype, std::move(primitive), std::move(inputs));
}

mx::array composed_layer_norm(
    const mx::array& x, const NormAffine& affine, float eps, mx::Stream s) {
  // MLX's CUDA kernel for the gradient reads 16 bytes at a time. If the size of a row is not a
  // multiple of 16 bytes, the kernel reads wrong positions at the end of the row: docs/upstream,
  // section 10.
  if (!is_cuda(s) || x.shape(-1) * x.itemsize() % 16 == 0) {
    return mx::fast::layer_norm(x, affine.weight, affine.bias, eps, s);
  }
  auto wide = [s](const std::optional<mx::array>& vector) {
    return vector ? std::optional(mx::astype(*vector, mx::float32, s)) : vector;
  };
  auto y = mx::astype(x, mx::float32, s);
  auto centered = mx::subtract(y, mx::mean(y, -1, true, s), s);
  auto variance = mx::mean(mx::square(centered, s), -1, true, s);
  auto inverse = mx::rsqrt(mx::add(variance, mx::array(eps), s), s);
  NormAffine vectors{wide(affine.weight), wide(affine.bias)};
  return mx::astype(vectors.apply(mx::multiply(centered, inverse, s), s), x.dtype(), s);
}

Arrays LayerNorm::compose(const Arrays& inputs) {
  auto affine = NormAffine::of(inputs, 1, weighted_, biased_);
  return {composed_layer_norm(inputs[0], affine, eps_, stream())};
}

Arrays LayerNorm::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays&) {
  auto affine = NormAffine::of(primals, 1, weighted_, biased_);
  return norm_vjp({true, eps_}, primals[0], affine, cotangents[0], {}, argnums, 1, stream());
}

std::pair<Arrays, std::vector<int>> LayerNorm::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  auto s = stream();
  auto affine = NormAffine::of(inputs, 1, weighted_, biased_);
  int weight_axis = weighted_ ? axes[1] : -1;
  int bias_axis = biased_ ? axes[1 + weighted_] : -1;
  // If x has no mapped axis, this normalizes x only once for all entries.
  auto x = axes[0] < 0 ? mx::expand_dims(inputs[0], 0, s) : mx::moveaxis(inputs[0], axes[0], 0, s);
  if (weight_axis < 0 && bias_axis < 0) {
    return {{layer_norm(x, affine.weight, affine.bias, eps_, s)}, {0}};
  }
  auto own = affine.batched(weight_axis, bias_axis, x.ndim(), s);
  auto normed = layer_norm(x, std::nullopt, std::nullopt, eps_, s);
  return {{own.apply(normed, s)}, {0}};
}

bool LayerNorm::is_equivalent(const mx::Primitive& other) const {
  auto& norm = static_cast<const LayerNorm&>(other);
  return weighted_ == norm.weighted_ && biased_ == norm.biased_ && eps_ == norm.eps_;
}

std::vector<Dispatch> LayerNorm::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto& x = inputs[0];
  Rows rows(x);
  auto launch = plan_rows(
      layer_norm_op, type_suffix(x), rows, LAYER_NORM_SLOTS, max_threads, LAYER_NORM_QUADS);
  auto& weight = weighted_ ? inputs[1] : x; // a buffer must be bound
  auto& bias = biased_ ? inputs[1 + weighted_] : x;
  LayerNormParams params{rows.narrow(), rows.axis, eps_, weighted_, biased_};
  return {{layer_norm_op, launch, {x, weight, bias}, outputs, params}};
}

CpuCall LayerNorm::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& x = inputs[0];
  Rows rows(x);
  return [element = element_of(x),
          rows,
          eps = eps_,
          in = bytes(x),
          weight = weighted_ ? bytes(inputs[1]) : nullptr,
          bias = biased_ ? bytes(inputs[1 + weighted_]) : nullptr,
          to = bytes(outputs[0])] {
    cpu::mlxp_cpu_layer_norm(element, in, weight, bias, to, rows.count, rows.axis, eps);
  };
}

} // namespace mlx_primitives
