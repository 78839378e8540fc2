#include "ops/masked_softmax.h"

#include <algorithm>

#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {
constexpr auto masked_softmax_op = "masked_softmax";

void require_broadcast(const mx::array& mask, const mx::array& x) {
  bool fits = mask.ndim() <= x.ndim();
  for (int i = 1; fits && i <= static_cast<int>(mask.ndim()); ++i) {
    fits = mask.shape(-i) == 1 || mask.shape(-i) == x.shape(-i);
  }
  if (!fits) {
    refuse(
        masked_softmax_op,
        "expected a mask that broadcasts to ",
        x.shape(),
        ", got shape ",
        mask.shape());
  }
}

/** Returns the mask. Copies it only if it has more axes than the kernels can index. */
mx::array readable(const mx::array& mask, const mx::array& x, mx::Stream s) {
  if (mask.ndim() <= MASK_DIMS + 1) {
    return mask;
  }
  return row_contiguous(mx::broadcast_to(mask, x.shape(), s), s);
}

/** Builds a node of type `Type` with the shape and type of its first input. */
template <typename Type>
mx::array node(Arrays inputs, const Masking& masking, mx::Stream s) {
  auto shape = inputs[0].shape();
  auto dtype = inputs[0].dtype();
  return mx::array(shape, dtype, std::make_shared<Type>(s, masking), std::move(inputs));
}

/** A mask [queries, keys] that is true where the causal rule and the window let a score count. */
std::optional<mx::array> seen(const mx::array& x, const Masking& masking, mx::Stream s) {
  if (!masking.causal) {
    return std::nullopt;
  }
  int queries = x.shape(-2);
  int keys = x.shape(-1);
  auto query = mx::reshape(mx::arange(keys - queries, keys, s), {queries, 1}, s);
  auto key = mx::reshape(mx::arange(0, keys, s), {1, keys}, s);
  auto result = mx::less_equal(key, query, s);
  if (masking.window > 0) {
    auto first = mx::subtract(query, mx::array(masking.window), s);
    result = mx::logical_and(result, mx::greater(key, first, s), s);
  }
  return result;
}

/** Both masks combined, or the only mask that is present. */
std::optional<mx::array> shown(
    const mx::array& x, const mx::array* bools, const Masking& masking, mx::Stream s) {
  auto causal = seen(x, masking, s);
  if (!bools) {
    return causal;
  }
  return causal ? mx::logical_and(*bools, *causal, s) : *bools;
}

/** Sums x over the axes along which an array of this shape was broadcast. */
mx::array sum_to(const mx::array& x, const mx::Shape& shape, mx::Stream s) {
  std::vector<int> axes;
  int extra = static_cast<int>(x.ndim() - shape.size());
  for (int i = 0; i < static_cast<int>(x.ndim()); ++i) {
    if (i < extra || (shape[i - extra] == 1 && x.shape(i) != 1)) {
      axes.push_back(i);
    }
  }
  return mx::reshape(mx::sum(x, axes, true, s), shape, s);
}

/** The inputs with the mapped axis first. A mask without a mapped axis broadcasts as before. */
Arrays mapped(
    const Arrays& inputs,
    const std::vector<int>& axes,
    size_t scores, // the number of inputs before the mask
    mx::Stream s) {
  int size = batch_size(inputs, axes);
  Arrays result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i < scores) {
      result.push_back(row_contiguous(batch_first(inputs[i], axes[i], size, s), s));
    } else if (axes[i] < 0) {
      result.push_back(readable(inputs[i], result[0], s));
    } else {
      auto mask = mx::moveaxis(inputs[i], axes[i], 0, s);
      auto shape = mask.shape();
      shape.insert(shape.begin() + 1, result[0].ndim() - mask.ndim(), 1);
      result.push_back(readable(mx::reshape(mask, shape, s), result[0], s));
    }
  }
  return result;
}

} // namespace

mx::array masked_softmax(
    const mx::array& x,
    float scale,
    const std::optional<mx::array>& mask,
    bool causal,
    std::optional<int> window,
    mx::StreamOrDevice s_) {
  require_last_axis(masked_softmax_op, x);
  require_kernel_dtype(masked_softmax_op, x.dtype());
  auto s = mx::to_stream(s_);
  if (window && *window <= 0) {
    refuse(masked_softmax_op, "expected a window of at least one key, got ", *window);
  }
  if (mask) {
    require_broadcast(*mask, x);
    if (mask->dtype() != mx::bool_ && mx::promote_types(mask->dtype(), x.dtype()) != x.dtype()) {
      refuse(
          masked_softmax_op,
          "expected a mask of bool or that promotes to ",
          x.dtype(),
          ", got ",
          mask->dtype());
    }
  }
  if (x.ndim() == 1) { // a vector is one query
    auto row = mx::expand_dims(x, 0, s);
    return mx::squeeze(masked_softmax(row, scale, mask, causal, window, s), 0, s);
  }
  Arrays inputs = {row_contiguous(x, s)};
  if (mask) {
    auto typed = mask->dtype() == mx::bool_ ? *mask : convert(*mask, x.dtype(), s);
    inputs.push_back(readable(typed, x, s));
  }
  Masking masking = {rounded(scale, x.dtype()), causal || window, window.value_or(0)};
  return node<MaskedSoftmax>(std::move(inputs), masking, s);
}

Arrays MaskedSoftmax::compose(const Arrays& inputs) {
  auto s = stream();
  auto& x = inputs[0];
  auto scores = x;
  if (masking_.scale != 1.0f) {
    scores = mx::multiply(x, mx::array(masking_.scale, x.dtype()), s);
  }
  const auto* mask = inputs.size() > 1 ? &inputs[1] : nullptr;
  const auto* bools = mask && mask->dtype() == mx::bool_ ? mask : nullptr;
  if (mask && !bools) {
    scores = mx::add(scores, *mask, s);
  }
  if (auto condition = shown(x, bools, masking_, s)) {
    auto lowest = mx::array(mx::finfo(x.dtype()).min, x.dtype());
    scores = mx::where(*condition, scores, lowest, s);
  }
  return {mx::softmax(scores, -1, true, s)};
}

Arrays MaskedSoftmax::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  auto s = stream();
  Arrays inputs = {outputs[0], row_contiguous(cotangents[0], s)};
  bool bools = primals.size() > 1 && primals[1].dtype() == mx::bool_;
  if (bools) {
    inputs.push_back(primals[1]);
  }
  Arrays result;
  for (int argnum : argnums) {
    if (argnum == 0) {
      result.push_back(node<MaskedSoftmaxGrad>(inputs, masking_, s));
    } else if (bools) {
      result.push_back(mx::zeros_like(primals[1], s));
    } else {
      auto masking = masking_;
      masking.scale = 1.0f;
      auto of_scores = node<MaskedSoftmaxGrad>(inputs, masking, s);
      result.push_back(sum_to(of_scores, primals[1].shape(), s));
    }
  }
  return result;
}

std::pair<Arrays, std::vector<int>> MaskedSoftmax::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  return {{node<MaskedSoftmax>(mapped(inputs, axes, 1, stream()), masking_, stream())}, {0}};
}

Cost MaskedSoftmax::cost(const Arrays& inputs, const Arrays& outputs) {
  auto result = ComposedPrimitive::cost(inputs, outputs);
  int64_t queries = outputs[0].shape(-2);
  int64_t keys = outputs[0].shape(-1);
  int64_t hidden = 0;
  for (int64_t q = 0; masking_.causal && q < queries; ++q) {
    int64_t last = std::max<int64_t>(0, q + 1 + keys - queries);
    hidden += keys - (masking_.window > 0 ? std::min<int64_t>(last, masking_.window) : last);
  }
  if (queries > 0) {
    result.device_bytes -= inputs[0].nbytes() / (queries * keys) * hidden;
  }
  return result;
}

bool MaskedSoftmax::is_equivalent(const mx::Primitive& other) const {
  return masking_ == static_cast<const MaskedSoftmax&>(other).masking_;
}

mx::array softmax_gradient(const mx::array& y, const mx::array& g, mx::Stream s) {
  Arrays inputs = {y, g};
  for (auto& input : inputs) {
    input = row_contiguous(input.ndim() > 1 ? input : mx::expand_dims(input, 0, s), s);
  }
  auto gradient = node<MaskedSoftmaxGrad>(inputs, {}, s);
  return y.ndim() > 1 ? gradient : mx::squeeze(gradient, 0, s);
}

Arrays MaskedSoftmaxGrad::compose(const Arrays& inputs) {
  auto s = stream();
  auto y = mx::astype(inputs[0], mx::float32, s);
  auto g = mx::astype(inputs[1], mx::float32, s);
  auto along = mx::sum(mx::multiply(y, g, s), -1, true, s);
  auto result = mx::multiply(y, mx::subtract(g, along, s), s);
  result = mx::multiply(result, mx::array(masking_.scale), s);
  if (auto condition = shown(y, inputs.size() > 2 ? &inputs[2] : nullptr, masking_, s)) {
    result = mx::where(*condition, result, mx::array(0.0f), s);
  }
  return {mx::astype(result, inputs[0].dtype(), s)};
}

std::pair<Arrays, std::vector<int>> MaskedSoftmaxGrad::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  return {{node<MaskedSoftmaxGrad>(mapped(inputs, axes, 2, stream()), masking_, stream())}, {0}};
}

bool MaskedSoftmaxGrad::is_equivalent(const mx::Primitive& other) const {
  return masking_ == static_cast<const MaskedSoftmaxGrad&>(other).masking_;
}

namespace {

/** Returns the kernels' parameters for evaluated scores and their mask, if there is one. */
MaskedSoftmaxParams params_of(const mx::array& x, const mx::array* mask, const Masking& masking) {
  MaskedSoftmaxParams params{};
  params.queries = x.shape(-2);
  params.keys = x.shape(-1);
  params.rows = static_cast<uint32_t>(x.size() / x.shape(-1));
  params.causal = masking.causal;
  params.window = masking.window;
  params.scale = masking.scale;
  if (!mask) {
    return params;
  }
  params.mask_kind = mask->dtype() == mx::bool_ ? MASK_BOOL : MASK_ADDITIVE;
  // This loop merges axes that are contiguous in memory. It drops axes of one element, and leading
  // axes along which the whole mask repeats.
  int64_t lowest = 0;
  auto reach = [&lowest](int64_t stride, int extent) {
    lowest += std::min<int64_t>(0, stride * (extent - 1));
  };
  std::vector<std::pair<uint32_t, int64_t>> dims;
  int missing = static_cast<int>(x.ndim() - mask->ndim());
  for (int i = 0; i + 1 < static_cast<int>(x.ndim()); ++i) {
    bool repeats = i < missing || mask->shape(i - missing) == 1;
    int64_t stride = repeats ? 0 : mask->strides()[i - missing];
    if (x.shape(i) == 1 || (dims.empty() && stride == 0)) {
      continue;
    }
    reach(stride, x.shape(i));
    auto extent = static_cast<uint32_t>(x.shape(i));
    if (!dims.empty() && dims.back().second == stride * extent) {
      dims.back() = {dims.back().first * extent, stride};
    } else {
      dims.push_back({extent, stride});
    }
  }
  bool repeats = mask->ndim() == 0 || mask->shape(-1) == 1;
  params.mask_key_stride = repeats ? 0 : mask->strides().back();
  reach(params.mask_key_stride, x.shape(-1));
  params.mask_start = -lowest;
  if (dims.size() > MASK_DIMS) {
    refuse(
        masked_softmax_op,
        "expected a mask of at most ",
        int(MASK_DIMS),
        " axes, got ",
        dims.size());
  }
  params.mask_dims = static_cast<uint32_t>(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    params.mask_shape[i] = dims[i].first;
    params.mask_strides[i] = dims[i].second;
  }
  return params;
}

/** Plans the softmax or its gradient. The inputs are `scores` arrays, then a mask, if present. */
std::vector<Dispatch> dispatch(
    const char* stem,
    size_t scores,
    const Arrays& inputs,
    const Arrays& outputs,
    const Masking& masking,
    uint32_t max_threads) {
  auto& out = outputs[0];
  const auto* mask = inputs.size() > scores ? &inputs[scores] : nullptr;
  auto params = params_of(out, mask, masking);
  Arrays bound(inputs.begin(), inputs.begin() + static_cast<long>(scores));
  bound.push_back(mask ? *mask : inputs[0]); // a buffer must be bound
  auto launch = plan_rows(stem, type_suffix(out), Rows(out), MASKED_SOFTMAX_SLOTS, max_threads);
  Dispatch result(stem, launch, bound, outputs, params);
  if (mask) {
    // Strides may be negative, so the binding begins at the lowest address of the mask.
    auto size = static_cast<int64_t>(mask->itemsize());
    result.bindings[scores].offset = -static_cast<int64_t>(params.mask_start) * size;
  }
  return {result};
}

/** `g` is the gradient of the result, if the call is for the gradient. */
cpu::MaskedSoftmaxCall call_of(
    const mx::array& x,
    const mx::array* g,
    const mx::array* mask,
    const Masking& masking,
    mx::array& out) {
  auto params = params_of(x, mask, masking);
  cpu::MaskedSoftmaxCall call{};
  call.element = element_of(x);
  call.shape = {x.size() / x.shape(-1), params.queries, params.keys, masking.causal, params.window};
  call.scale = params.scale;
  call.additive = params.mask_kind == MASK_ADDITIVE;
  call.mask_dims = params.mask_dims;
  call.mask_key_stride = params.mask_key_stride;
  std::copy_n(params.mask_strides, MASK_DIMS, call.mask_strides);
  std::copy_n(params.mask_shape, MASK_DIMS, call.mask_shape);
  call.x = bytes(x);
  call.g = g ? bytes(*g) : nullptr;
  call.mask = mask ? bytes(*mask) : nullptr;
  call.out = bytes(out);
  return call;
}

} // namespace

std::vector<Dispatch> MaskedSoftmax::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  return dispatch(masked_softmax_op, 1, inputs, outputs, masking_, max_threads);
}

CpuCall MaskedSoftmax::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  const auto* mask = inputs.size() > 1 ? &inputs[1] : nullptr;
  auto call = call_of(inputs[0], nullptr, mask, masking_, outputs[0]);
  return [call] { cpu::mlxp_cpu_masked_softmax(call); };
}

std::vector<Dispatch> MaskedSoftmaxGrad::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  return dispatch("masked_softmax_grad", 2, inputs, outputs, masking_, max_threads);
}

CpuCall MaskedSoftmaxGrad::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  const auto* mask = inputs.size() > 2 ? &inputs[2] : nullptr;
  auto call = call_of(inputs[0], &inputs[1], mask, masking_, outputs[0]);
  return [call] { cpu::mlxp_cpu_masked_softmax_grad(call); };
}

} // namespace mlx_primitives
