#include "ops/rope.h"

namespace mlx_primitives {

namespace {
constexpr auto op = "rope";
} // namespace

mx::array rope(
    const mx::array& x,
    int dims,
    bool traditional,
    std::optional<float> base,
    float scale,
    const mx::array& offset,
    const std::optional<mx::array>& freqs,
    mx::StreamOrDevice s_) {
  if (x.ndim() < 3) {
    refuse(op, "expected x of rank 3 or more, got shape ", x.shape());
  }
  require_kernel_dtype(op, x.dtype());
  if (dims <= 0 || dims % 2 != 0 || dims > x.shape(-1)) {
    refuse(op, "expected dims to be even and within 2 to ", x.shape(-1), ", got ", dims);
  }
  if (!mx::issubdtype(offset.dtype(), mx::integer)) {
    refuse(op, "expected offset of an integer dtype, got ", offset.dtype());
  }
  if (offset.ndim() > 1 || (offset.size() != 1 && offset.size() != size_t(x.shape(0)))) {
    refuse(op, "expected offset to be one number or ", x.shape(0), ", got shape ", offset.shape());
  }
  if (base.has_value() == freqs.has_value()) {
    refuse(op, "expected exactly one of base and freqs, got ", base ? "both" : "neither");
  }
  if (freqs && (freqs->ndim() != 1 || freqs->shape(0) != dims / 2)) {
    refuse(op, "expected freqs of shape (", dims / 2, "), got ", freqs->shape());
  }

  auto s = mx::to_stream(s_);
  std::vector<mx::array> inputs = {
      row_contiguous(x, s), row_contiguous(mx::astype(offset, mx::int32, s), s)};
  if (freqs) {
    inputs.push_back(row_contiguous(mx::astype(*freqs, mx::float32, s), s));
  }
  auto primitive =
      std::make_shared<Rope>(s, dims, traditional, base.value_or(1.0f), scale, /* forward */ true);
  return mx::array(x.shape(), x.dtype(), std::move(primitive), std::move(inputs));
}

/** The same rotation, or its inverse, of other values at the same positions. */
mx::array Rope::apply(const mx::array& x, const std::vector<mx::array>& primals, bool forward) {
  auto s = stream();
  std::vector<mx::array> inputs = {row_contiguous(x, s)};
  inputs.insert(inputs.end(), primals.begin() + 1, primals.end());
  auto primitive = std::make_shared<Rope>(s, dims_, traditional_, base_, scale_, forward);
  return mx::array(x.shape(), x.dtype(), std::move(primitive), std::move(inputs));
}

std::vector<mx::array> Rope::compose(const std::vector<mx::array>& inputs) {
  auto freqs = inputs.size() > 2 ? std::optional(inputs[2]) : std::nullopt;
  auto base = freqs ? std::nullopt : std::optional(base_);
  float scale = forward_ ? scale_ : -scale_;
  return {mx::fast::rope(inputs[0], dims_, traditional_, base, scale, inputs[1], freqs, stream())};
}

std::vector<mx::array> Rope::vjp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& cotangents,
    const std::vector<int>& argnums,
    const std::vector<mx::array>&) {
  require_only_x(argnums);
  return {apply(cotangents[0], primals, !forward_)};
}

std::vector<mx::array> Rope::jvp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& tangents,
    const std::vector<int>& argnums) {
  require_only_x(argnums);
  return {apply(tangents[0], primals, forward_)};
}

void Rope::require_only_x(const std::vector<int>& argnums) {
  for (auto argnum : argnums) {
    if (argnum != 0) {
      refuse(op, "expected derivatives with respect to x, got offset or freqs");
    }
  }
}

std::pair<std::vector<mx::array>, std::vector<int>> Rope::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  auto s = stream();
  int size = batch_size(inputs, axes);
  if (inputs.size() > 2 && axes[2] >= 0) {
    return vmap_freqs(inputs, axes, size);
  }
  // The mapped axis joins the batch, the only axis that offsets may differ along.
  auto x = batch_first(inputs[0], axes[0], size, s);
  auto shape = x.shape();
  int batch = shape[1];
  auto folded = inputs;
  folded[0] = row_contiguous(mx::flatten(x, 0, 1, s), s);
  if (axes[1] >= 0 || inputs[1].size() > 1) {
    auto offset = batch_first(inputs[1], axes[1], size, s);
    offset = mx::broadcast_to(mx::reshape(offset, {size, -1}, s), {size, batch}, s);
    folded[1] = row_contiguous(mx::flatten(offset, s), s);
  }
  return {{mx::reshape(apply(folded[0], folded, forward_), shape, s)}, {0}};
}

std::pair<std::vector<mx::array>, std::vector<int>> Rope::vmap_freqs(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes, int size) {
  // The kernel takes one set of frequencies a call.
  auto s = stream();
  std::vector<mx::array> results;
  for (int i = 0; i < size; ++i) {
    std::vector<mx::array> entry;
    for (size_t k = 0; k < inputs.size(); ++k) {
      auto input = axes[k] < 0 ? inputs[k] : mx::take(inputs[k], i, axes[k], s);
      entry.push_back(row_contiguous(input, s));
    }
    results.push_back(apply(entry[0], entry, forward_));
  }
  return {{mx::stack(results, 0, s)}, {0}};
}

bool Rope::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const Rope&>(other);
  return dims_ == o.dims_ && traditional_ == o.traditional_ && base_ == o.base_ &&
         scale_ == o.scale_ && forward_ == o.forward_;
}

std::vector<mx::Shape> Rope::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape()};
}

} // namespace mlx_primitives
