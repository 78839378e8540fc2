#include "ops/masked_softmax.h"

#include <algorithm>

namespace mlx_primitives {

namespace {
constexpr auto op = "masked_softmax";

void require_broadcast(const mx::array& mask, const mx::array& x) {
  bool fits = mask.ndim() <= x.ndim();
  for (int i = 1; fits && i <= static_cast<int>(mask.ndim()); ++i) {
    fits = mask.shape(-i) == 1 || mask.shape(-i) == x.shape(-i);
  }
  if (!fits) {
    refuse(op, "expected a mask that broadcasts to ", x.shape(), ", got shape ", mask.shape());
  }
}

/** As MLX multiplies by a scalar: after it became the array's type. */
float rounded(float scale, mx::Dtype dtype) {
  if (dtype == mx::float16) {
    return static_cast<float>(mx::float16_t(scale));
  }
  return dtype == mx::bfloat16 ? static_cast<float>(mx::bfloat16_t(scale)) : scale;
}

/** The mask as the kernels read it, which is where it lies but for more than MASK_DIMS axes. */
mx::array readable(const mx::array& mask, const mx::array& x, mx::Stream s) {
  if (mask.ndim() <= MASK_DIMS + 1) {
    return mask;
  }
  return mx::contiguous(mx::broadcast_to(mask, x.shape(), s), false, s);
}

/** A node of either primitive, of the shape and type of its first input. */
template <typename Type>
mx::array node(std::vector<mx::array> inputs, const Masking& masking, mx::Stream s) {
  auto shape = inputs[0].shape();
  auto dtype = inputs[0].dtype();
  return mx::array(shape, dtype, std::make_shared<Type>(s, masking), std::move(inputs));
}

/** [queries, keys]: true where the causal mask and the window let a score count. */
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

/** Both conditions, where there are both. */
std::optional<mx::array> shown(
    const mx::array& x, const mx::array* bools, const Masking& masking, mx::Stream s) {
  auto causal = seen(x, masking, s);
  if (!bools) {
    return causal;
  }
  return causal ? mx::logical_and(*bools, *causal, s) : *bools;
}

/** The sum over what was broadcast. */
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

/** Inputs with the mapped axis in front of all; an unmapped mask broadcasts as it did. */
std::vector<mx::array> mapped(
    const std::vector<mx::array>& inputs,
    const std::vector<int>& axes,
    size_t scores, // how many of the inputs are no mask
    mx::Stream s) {
  int size = batch_size(inputs, axes);
  std::vector<mx::array> result;
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
  require_last_axis(op, x);
  require_kernel_dtype(op, x.dtype());
  auto s = mx::to_stream(s_);
  if (window && *window <= 0) {
    refuse(op, "expected a window of at least one key, got ", *window);
  }
  if (mask) {
    require_broadcast(*mask, x);
    if (mask->dtype() != mx::bool_ && mx::promote_types(mask->dtype(), x.dtype()) != x.dtype()) {
      refuse(
          op, "expected a mask of bool or that promotes to ", x.dtype(), ", got ", mask->dtype());
    }
  }
  if (x.ndim() == 1) { // one query
    auto row = mx::expand_dims(x, 0, s);
    return mx::squeeze(masked_softmax(row, scale, mask, causal, window, s), 0, s);
  }
  std::vector<mx::array> inputs = {row_contiguous(x, s)};
  if (mask) {
    auto typed = mask->dtype() == mx::bool_ ? *mask : mx::astype(*mask, x.dtype(), s);
    inputs.push_back(readable(typed, x, s));
  }
  Masking masking = {rounded(scale, x.dtype()), causal || window, window.value_or(0)};
  return node<MaskedSoftmax>(std::move(inputs), masking, s);
}

MaskedSoftmaxParams masked_softmax_params(
    const mx::array& x, const mx::array* mask, const Masking& masking) {
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
  // Axes that lie in memory as one are taken as one. Those of one element do not count, nor those
  // in front along which all of the mask is repeated.
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
    refuse(op, "expected a mask of at most ", int(MASK_DIMS), " axes, got ", dims.size());
  }
  params.mask_dims = static_cast<uint32_t>(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    params.mask_shape[i] = dims[i].first;
    params.mask_strides[i] = dims[i].second;
  }
  return params;
}

std::vector<mx::array> MaskedSoftmax::compose(const std::vector<mx::array>& inputs) {
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

std::vector<mx::array> MaskedSoftmax::vjp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& cotangents,
    const std::vector<int>& argnums,
    const std::vector<mx::array>& outputs) {
  auto s = stream();
  std::vector<mx::array> inputs = {outputs[0], row_contiguous(cotangents[0], s)};
  bool bools = primals.size() > 1 && primals[1].dtype() == mx::bool_;
  if (bools) {
    inputs.push_back(primals[1]);
  }
  std::vector<mx::array> result;
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

std::pair<std::vector<mx::array>, std::vector<int>> MaskedSoftmax::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  return {{node<MaskedSoftmax>(mapped(inputs, axes, 1, stream()), masking_, stream())}, {0}};
}

Cost MaskedSoftmax::cost(
    const std::vector<mx::array>& inputs, const std::vector<mx::array>& outputs) const {
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

std::vector<mx::Shape> MaskedSoftmax::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape()};
}

std::vector<mx::array> MaskedSoftmaxGrad::compose(const std::vector<mx::array>& inputs) {
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

std::pair<std::vector<mx::array>, std::vector<int>> MaskedSoftmaxGrad::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  return {{node<MaskedSoftmaxGrad>(mapped(inputs, axes, 2, stream()), masking_, stream())}, {0}};
}

bool MaskedSoftmaxGrad::is_equivalent(const mx::Primitive& other) const {
  return masking_ == static_cast<const MaskedSoftmaxGrad&>(other).masking_;
}

std::vector<mx::Shape> MaskedSoftmaxGrad::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape()};
}

} // namespace mlx_primitives
