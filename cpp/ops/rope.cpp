#include "ops/rope.h"

#include <cmath>

#include "../../metal/rope.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {
constexpr auto rope_op = "rope";
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
    refuse(rope_op, "expected x of rank 3 or more, got shape ", x.shape());
  }
  require_kernel_dtype(rope_op, x.dtype());
  if (dims <= 0 || dims % 2 != 0 || dims > x.shape(-1)) {
    refuse(rope_op, "expected dims to be even and within 2 to ", x.shape(-1), ", got ", dims);
  }
  if (!mx::issubdtype(offset.dtype(), mx::integer)) {
    refuse(rope_op, "expected offset of an integer dtype, got ", offset.dtype());
  }
  if (offset.ndim() > 1 || (offset.size() != 1 && offset.size() != size_t(x.shape(0)))) {
    refuse(
        rope_op,
        "expected offset to be one number or ",
        x.shape(0),
        ", got shape ",
        offset.shape());
  }
  if (base.has_value() == freqs.has_value()) {
    refuse(rope_op, "expected exactly one of base and freqs, got ", base ? "both" : "neither");
  }
  if (freqs && (freqs->ndim() != 1 || freqs->shape(0) != dims / 2)) {
    refuse(rope_op, "expected freqs of shape (", dims / 2, "), got ", freqs->shape());
  }

  auto s = mx::to_stream(s_);
  Arrays inputs = {row_contiguous(x, s), row_contiguous(convert(offset, mx::int32, s), s)};
  if (freqs) {
    inputs.push_back(row_contiguous(convert(*freqs, mx::float32, s), s));
  }
  auto primitive =
      std::make_shared<Rope>(s, dims, traditional, base.value_or(1.0f), scale, /* forward */ true);
  return mx::array(x.shape(), x.dtype(), std::move(primitive), std::move(inputs));
}

/** Applies the rotation, or its inverse, to other values at the same positions. */
mx::array Rope::apply(const mx::array& x, const Arrays& primals, bool forward) {
  auto s = stream();
  Arrays inputs = {row_contiguous(x, s)};
  inputs.insert(inputs.end(), primals.begin() + 1, primals.end());
  auto primitive = std::make_shared<Rope>(s, dims_, traditional_, base_, scale_, forward);
  return mx::array(x.shape(), x.dtype(), std::move(primitive), std::move(inputs));
}

mx::array offset_of_mlx(const mx::array& offset, mx::Stream s) {
  return offset.size() == 1 ? mx::reshape(offset, {}, s) : offset;
}

Arrays Rope::compose(const Arrays& inputs) {
  auto freqs = inputs.size() > 2 ? std::optional(inputs[2]) : std::nullopt;
  auto base = freqs ? std::nullopt : std::optional(base_);
  float scale = forward_ ? scale_ : -scale_;
  auto offset = offset_of_mlx(inputs[1], stream());
  return {mx::fast::rope(inputs[0], dims_, traditional_, base, scale, offset, freqs, stream())};
}

Arrays Rope::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays&) {
  require_only_x(argnums);
  return {apply(cotangents[0], primals, !forward_)};
}

Arrays Rope::jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) {
  require_only_x(argnums);
  return {apply(tangents[0], primals, forward_)};
}

void Rope::require_only_x(const std::vector<int>& argnums) {
  for (auto argnum : argnums) {
    if (argnum != 0) {
      refuse(rope_op, "expected derivatives with respect to x, got offset or freqs");
    }
  }
}

std::pair<Arrays, std::vector<int>> Rope::vmap(const Arrays& inputs, const std::vector<int>& axes) {
  auto s = stream();
  int size = batch_size(inputs, axes);
  if (inputs.size() > 2 && axes[2] >= 0) {
    return vmap_freqs(inputs, axes, size);
  }
  // The mapped axis becomes part of the batch, because offsets may differ only along the batch
  // axis.
  auto x = batch_first(inputs[0], axes[0], size, s);
  auto shape = x.shape();
  int batch = shape[1];
  auto folded = inputs;
  folded[0] = row_contiguous(mx::flatten(row_contiguous(x, s), 0, 1, s), s);
  if (axes[1] >= 0 || inputs[1].size() > 1) {
    auto offset = batch_first(inputs[1], axes[1], size, s);
    offset = mx::broadcast_to(mx::reshape(offset, {size, -1}, s), {size, batch}, s);
    folded[1] = row_contiguous(mx::flatten(offset, s), s);
  }
  return {{mx::reshape(apply(folded[0], folded, forward_), shape, s)}, {0}};
}

std::pair<Arrays, std::vector<int>> Rope::vmap_freqs(
    const Arrays& inputs, const std::vector<int>& axes, int size) {
  // A call of the kernel takes one set of frequencies, so make a separate call for each entry.
  auto s = stream();
  Arrays results;
  for (int i = 0; i < size; ++i) {
    Arrays entry;
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

/**
 * Plans one thread for each point of a three-dimensional box. A threadgroup has at most ROPE_GROUP
 * threads.
 */
Launch plan_box(
    std::string_view rope_op,
    std::string kernel,
    std::array<uint64_t, 3> threads,
    uint32_t max_threads) {
  // `left` limits the threads of a group along this axis and the axes after it. If an axis needs
  // several groups, all groups have the same size.
  uint32_t left = std::clamp<uint32_t>(max_threads, 1, ROPE_GROUP);
  Launch launch;
  for (int i = 0; i < 3; i++) {
    uint64_t groups = ceil_div(threads[i], left);
    uint64_t extent = groups ? ceil_div(threads[i], groups) : 1;
    grid_count(rope_op, "threads", groups * extent);
    launch.grid[i] = static_cast<uint32_t>(groups);
    launch.group[i] = static_cast<uint32_t>(extent);
    left /= launch.group[i];
  }
  launch.threadgroup_bytes = 0;
  launch.kernel = std::move(kernel);
  return launch;
}

std::vector<Dispatch> Rope::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto& x = inputs[0];
  auto& offset = inputs[1];
  bool explicit_freqs = inputs.size() > 2;
  RopeParams params{};
  params.batch = x.shape(0);
  params.length = x.shape(-2);
  params.features = x.shape(-1);
  params.heads = static_cast<uint32_t>(x.size() / x.shape(0) / x.shape(-2) / x.shape(-1));
  params.pairs = dims_ / 2;
  params.columns = rope_columns(params.features, params.pairs, in_place(x, outputs[0]));
  params.offset_stride = offset.size() > 1 ? 1 : 0;
  params.scale = scale_;
  params.log2_base = explicit_freqs ? 0.0f : std::log2(base_);
  params.direction = forward_ ? 1.0f : -1.0f;

  // A single position needs few threads, so give each head separate threads.
  bool one_head = params.length == 1 || params.heads == 1;
  uint64_t depth =
      uint64_t{params.batch} * ceil_div(params.heads, one_head ? 1u : unsigned{ROPE_HEADS});
  std::string kernel = "mlxp_rope";
  kernel += traditional_ ? "_interleaved" : "_half";
  kernel += explicit_freqs ? "_freqs" : "_base";
  kernel += one_head ? "_one_head" : "";
  auto launch = plan_box(
      rope_op, kernel + type_suffix(x), {params.columns, params.length, depth}, max_threads);
  auto& freqs = explicit_freqs ? inputs[2] : offset; // a buffer must be bound
  return {{rope_op, launch, {x, offset, freqs}, outputs, params}};
}

CpuCall Rope::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& x = inputs[0];
  auto& offset = inputs[1];
  size_t batch = x.shape(0);
  size_t seq = x.shape(-2);
  size_t head_dim = x.shape(-1);
  cpu::RopeCall call{
      .element = element_of(x),
      .base = base_,
      .shape =
          {.batch = batch,
           .heads = x.size() / (batch * seq * head_dim),
           .seq = seq,
           .head_dim = head_dim,
           .dims = static_cast<size_t>(dims_),
           .traditional = traditional_,
           .forward = forward_,
           .scale = scale_},
      .freqs = inputs.size() > 2 ? inputs[2].data<float>() : nullptr,
      .offsets = offset.data<int32_t>(),
      .offset_count = offset.size(),
      .x = bytes(x),
      .out = bytes(outputs[0])};
  return [call] { cpu::mlxp_cpu_rope(call); };
}

} // namespace mlx_primitives
