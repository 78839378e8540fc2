#include "ops/rope_append.h"

#include <cmath>
#include <cstddef>
#include <limits>

#include "../../metal/rope_append.h"
#include "ops/rope.h"

namespace mlx_primitives {

namespace {

constexpr auto kv_op = "rope_append";
constexpr int query_positions = QUERY_POSITIONS;
// `Dispatch::bind_known` binds a KnownInteger, and the kernel reads it as a KnownOffset.
static_assert(sizeof(KnownOffset) == sizeof(KnownInteger));
static_assert(offsetof(KnownOffset, offset) == offsetof(KnownInteger, value));

int64_t rows(const KvLayout& layout) {
  return int64_t{query_positions} * layout.heads + 2 * int64_t{layout.kv_heads} * layout.capacity;
}

void check_layout(const KvLayout& layout, const mx::array& state, const mx::array& qkv) {
  auto& [heads, kv_heads, head_dim, capacity] = layout;
  constexpr int limit = 1 << 24; // no model exceeds this, and products below do not overflow
  for (int extent : {heads, kv_heads, head_dim}) {
    if (extent < 1 || extent > limit) {
      refuse(kv_op, "expected heads, kv_heads and head_dim within 1 to ", limit, ", got ", extent);
    }
  }
  if (capacity < 0 || rows(layout) > std::numeric_limits<int>::max()) {
    refuse(kv_op, "expected a capacity of at most 31 bits of rows, got ", capacity);
  }
  auto width = (int64_t{heads} + 2 * int64_t{kv_heads}) * head_dim;
  if (state.ndim() != 3 || state.shape(1) != rows(layout) || state.shape(2) != head_dim) {
    refuse(
        kv_op, "expected a state (batch, ", rows(layout), ", ", head_dim, "), got ", state.shape());
  }
  if (qkv.ndim() != 3 || qkv.shape(0) != state.shape(0) || qkv.shape(2) != width) {
    refuse(kv_op, "expected qkv (", state.shape(0), ", time, ", width, "), got ", qkv.shape());
  }
  if (qkv.shape(1) > capacity) {
    refuse(kv_op, "expected at most ", capacity, " positions, got ", qkv.shape(1));
  }
}

/**
 * Throws if the positions exceed the capacity. Checks this only if the host can read `slots`
 * without waiting.
 */
void check_room(const mx::array& slots, int time, int capacity) {
  bool known = slots.dtype() == mx::int32 && !slots.has_primitive() && slots.data_shared_ptr() &&
               slots.is_available();
  for (size_t i = 0; known && i < slots.size(); ++i) {
    int64_t stride = slots.ndim() ? slots.strides(0) : 0;
    int64_t slot = slots.data<int32_t>()[static_cast<int64_t>(i) * stride];
    if (slot < 0 || slot + time > capacity) {
      refuse(
          kv_op,
          "expected ",
          time,
          " positions within a capacity of ",
          capacity,
          ", got ",
          slot,
          " as the first");
    }
  }
}

} // namespace

void check_rotation(const Rotation& rotation, int head_dim) {
  auto& [dims, traditional, base, scale, multiplier, freqs] = rotation;
  if (dims <= 0 || dims % 2 != 0 || dims > head_dim) {
    refuse(kv_op, "expected dims to be even and within 2 to ", head_dim, ", got ", dims);
  }
  if (base.has_value() == freqs.has_value()) {
    refuse(kv_op, "expected exactly one of base and freqs, got ", base ? "both" : "neither");
  }
  if (freqs && (freqs->ndim() != 1 || freqs->shape(0) != dims / 2)) {
    refuse(kv_op, "expected freqs of shape (", dims / 2, "), got ", freqs->shape());
  }
}

void check_positions(const char* what, const mx::array& positions, int batch) {
  if (!mx::issubdtype(positions.dtype(), mx::integer)) {
    refuse(kv_op, "expected ", what, " of an integer dtype, got ", positions.dtype());
  }
  if (positions.ndim() > 1 || (positions.size() != 1 && positions.size() != size_t(batch))) {
    refuse(kv_op, "expected ", what, " to be one number or ", batch, ", got ", positions.shape());
  }
}

Arrays append_inputs(
    const mx::array& state,
    const mx::array& qkv,
    const KvLayout& layout,
    const Rotation& rotation,
    const mx::array& offset,
    const std::optional<mx::array>& slots_,
    mx::Stream s) {
  require_kernel_dtype(kv_op, state.dtype());
  if (qkv.dtype() != state.dtype()) {
    refuse(kv_op, "expected qkv of the state's dtype ", state.dtype(), ", got ", qkv.dtype());
  }
  check_layout(layout, state, qkv);
  check_rotation(rotation, layout.head_dim);
  check_positions("offset", offset, state.shape(0));
  auto& slots = slots_ ? *slots_ : offset;
  check_positions("slots", slots, state.shape(0));
  check_room(slots, qkv.shape(1), layout.capacity);

  auto integers = [&](const mx::array& a) { return row_contiguous(convert(a, mx::int32, s), s); };
  auto positions = integers(offset);
  Arrays inputs = {
      row_contiguous(state, s),
      row_contiguous(qkv, s),
      positions,
      slots_ ? integers(slots) : positions};
  if (rotation.freqs) {
    inputs.push_back(row_contiguous(convert(*rotation.freqs, mx::float32, s), s));
  }
  return inputs;
}

mx::array rope_append(
    const mx::array& state,
    const mx::array& qkv,
    const KvLayout& layout,
    const Rotation& rotation,
    const mx::array& offset,
    const std::optional<mx::array>& slots,
    mx::StreamOrDevice s_) {
  auto s = mx::to_stream(s_);
  auto inputs = append_inputs(state, qkv, layout, rotation, offset, slots, s);
  auto primitive = std::make_shared<RopeAppend>(s, layout, rotation);
  return mx::array(state.shape(), state.dtype(), std::move(primitive), std::move(inputs));
}

Arrays RopeAppend::compose(const Arrays& inputs) {
  auto s = stream();
  auto& [heads, kv_heads, head_dim, capacity] = layout_;
  auto& qkv = inputs[1];
  int batch = qkv.shape(0);
  int time = qkv.shape(1);
  if (batch == 0 || time == 0) {
    return {inputs[0]};
  }
  auto freqs = inputs.size() > 4 ? std::optional(inputs[4]) : std::nullopt;
  auto parts = composed_heads(qkv, inputs[2], freqs);
  auto state = inputs[0];
  if (time <= query_positions) {
    auto queries = mx::reshape(parts[0], {batch, heads * time, head_dim}, s);
    state = mx::slice_update(
        state, queries, mx::Shape{0, 0, 0}, mx::Shape{batch, heads * time, head_dim}, s);
  }
  auto stored = mx::concatenate({parts[1], parts[2]}, 1, s);
  return {keys_and_values(state, stored, inputs[3])};
}

/**
 * Returns the state after writing keys and values [batch, 2 * kv_heads, time, head_dim] to their
 * slots.
 */
mx::array RopeAppend::keys_and_values(
    const mx::array& state, const mx::array& stored, const mx::array& slots) {
  auto s = stream();
  auto& [heads, kv_heads, head_dim, capacity] = layout_;
  int batch = stored.shape(0);
  int time = stored.shape(2);
  int count = 2 * kv_heads * time;
  auto slot = mx::add(mx::reshape(slots, {-1, 1, 1}, s), mx::arange(0, time, mx::int32, s), s);
  auto zero = mx::array(0);
  auto room = mx::array(capacity);
  auto inside = mx::logical_and(mx::greater_equal(slot, zero, s), mx::less(slot, room, s), s);
  // Slots outside the capacity must not change the state. Each position takes the row of its slot
  // modulo the capacity. There are at most `capacity` consecutive slots, so no two of them take the
  // same row. For a slot outside the capacity, the old values of the row are written back.
  auto row = mx::add(
      mx::remainder(slot, room, s),
      mx::reshape(
          mx::arange(
              query_positions * heads,
              query_positions * heads + 2 * kv_heads * capacity,
              capacity,
              mx::int32,
              s),
          {1, 2 * kv_heads, 1},
          s),
      s);
  auto each = [&, kv_heads = kv_heads, head_dim = head_dim](const mx::array& x) {
    auto all = mx::broadcast_to(x, {batch, 2 * kv_heads, time}, s);
    return mx::broadcast_to(mx::reshape(all, {batch, count, 1}, s), {batch, count, head_dim}, s);
  };
  auto indices = each(row);
  auto kept = mx::where(
      each(inside),
      mx::reshape(stored, {batch, count, head_dim}, s),
      mx::take_along_axis(state, indices, 1, s),
      s);
  return mx::put_along_axis(state, indices, kept, 1, s);
}

Arrays joined_steps(
    const Arrays& inputs, const std::vector<int>& axes, size_t arrays, int size, mx::Stream s) {
  // The mapped axis becomes part of the batch, because positions may differ only along the batch
  // axis.
  auto folded = inputs;
  for (size_t i = 0; i < arrays; ++i) {
    auto x = batch_first(inputs[i], axes[i], size, s);
    folded[i] = row_contiguous(mx::flatten(row_contiguous(x, s), 0, 1, s), s);
  }
  int batch = folded[0].shape(0) / size;
  for (size_t i : {arrays, arrays + 1}) {
    if (axes[i] >= 0 || inputs[i].size() > 1) {
      auto each = batch_first(inputs[i], axes[i], size, s);
      each = mx::broadcast_to(mx::reshape(each, {size, -1}, s), {size, batch}, s);
      folded[i] = row_contiguous(mx::flatten(each, s), s);
    }
  }
  return folded;
}

std::pair<Arrays, std::vector<int>> RopeAppend::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  if (inputs.size() > 4 && axes[4] >= 0) {
    return ComposedPrimitive::vmap(inputs, axes); // the kernel takes one set of frequencies
  }
  auto s = stream();
  int size = batch_size(inputs, axes);
  auto folded = joined_steps(inputs, axes, 2, size, s);
  auto shape = inputs[0].shape();
  if (axes[0] >= 0) {
    shape.erase(shape.begin() + axes[0]);
  }
  Rotation same{dims_, traditional_, base_, scale_, multiplier_, std::nullopt};
  auto primitive = std::make_shared<RopeAppend>(s, layout_, same);
  auto flat = folded[0].shape();
  auto out = mx::array(flat, inputs[0].dtype(), std::move(primitive), std::move(folded));
  shape.insert(shape.begin(), size);
  return {{mx::reshape(out, shape, s)}, {0}};
}

Cost RopeAppend::cost(const Arrays& inputs, const Arrays&) {
  auto& qkv = inputs[1];
  size_t all = layout_.heads + 2 * layout_.kv_heads;
  size_t kept = qkv.shape(1) <= query_positions ? all : 2 * layout_.kv_heads;
  size_t bytes = 2 * (qkv.nbytes() / all * kept);
  for (size_t i = 2; i < inputs.size(); ++i) {
    bytes += inputs[i].nbytes();
  }
  return {1, bytes};
}

bool RopeAppend::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const RopeAppend&>(other);
  return layout_ == o.layout_ && dims_ == o.dims_ && traditional_ == o.traditional_ &&
         base_ == o.base_ && scale_ == o.scale_ && multiplier_ == o.multiplier_;
}

namespace {

/** Plans a copy of the whole state, with four elements per thread. */
Dispatch copy(const mx::array& from, const mx::array& to, uint32_t max_threads) {
  uint64_t count = to.size();
  uint64_t threads = ceil_div(count, READS);
  uint32_t group = std::clamp<uint32_t>(max_threads, 1, ROPE_GROUP);
  uint64_t columns = std::min<uint64_t>(ceil_div(threads, group), 1u << 16);
  StateCopyParams params{};
  params.count_low = static_cast<uint32_t>(count);
  params.count_high = static_cast<uint32_t>(count >> 32);
  params.row = static_cast<uint32_t>(columns * group);
  uint32_t rows = grid_count(kv_op, "threads", ceil_div(threads, params.row));
  Launch launch{
      "mlxp_rope_append_copy" + type_suffix(to),
      {static_cast<uint32_t>(columns), rows, 1},
      {group, 1, 1}};
  return {kv_op, launch, {from}, {to}, params};
}

} // namespace

std::vector<Dispatch> RopeAppend::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  return launches(inputs[0], {inputs[1]}, {inputs.begin() + 2, inputs.end()}, outputs, max_threads);
}

std::vector<Dispatch> RopeAppend::launches(
    const mx::array& state,
    const Arrays& step,
    const Arrays& places,
    const Arrays& outputs,
    uint32_t max_threads) const {
  bool forward = !step.empty();
  auto& qkv = forward ? step[0] : outputs[1];
  auto& offset = places[0];
  auto& slots = places[1];
  auto& out = outputs[0];
  std::vector<Dispatch> all;
  if (!in_place(state, out)) {
    all.push_back(copy(state, out, max_threads));
  }
  if (qkv.size() == 0) {
    return all;
  }
  bool explicit_freqs = places.size() > 2;
  RopeAppendParams params{};
  params.batch = state.shape(0);
  params.heads = layout_.heads;
  params.kv_heads = layout_.kv_heads;
  params.length = qkv.shape(1);
  params.features = layout_.head_dim;
  params.capacity = layout_.capacity;
  params.rows = state.shape(1);
  params.pairs = dims_ / 2;
  params.columns = rope_columns(params.features, params.pairs, /* in_place */ false);
  params.first_head = params.length <= QUERY_POSITIONS ? 0 : params.heads;
  params.offset_stride = offset.size() > 1 ? 1 : 0;
  params.slot_stride = slots.size() > 1 ? 1 : 0;
  params.slots_follow = slots.id() == offset.id() ? 1 : 0;
  params.scale = scale_;
  params.log2_base = explicit_freqs ? 0.0f : std::log2(base_);
  params.multiplier = rounded(multiplier_, state.dtype());

  uint64_t heads = uint64_t{params.heads} + 2 * uint64_t{params.kv_heads};
  heads -= forward ? params.first_head : 0; // backward, heads that were not stored become 0
  uint64_t depth = params.batch * ceil_div(heads, APPEND_HEADS);
  std::string kernel = forward ? "mlxp_rope_append" : "mlxp_rope_append_grad";
  kernel += traditional_ ? "_interleaved" : "_half";
  kernel += explicit_freqs ? "_freqs" : "_base";
  auto launch = plan_box(
      kv_op, kernel + type_suffix(state), {params.columns, params.length, depth}, max_threads);
  Arrays bound = {out};
  bound.insert(bound.end(), step.begin(), step.end());
  bound.insert(bound.end(), {offset, slots, places[explicit_freqs ? 2 : 0]}); // else any buffer
  all.emplace_back(kv_op, launch, bound, outputs, params);
  if (forward) {
    all.back().bind_known(offset);
  }
  return all;
}

CpuCall RopeAppend::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto call = this->call(
      inputs[0], inputs[1], {inputs.begin() + 2, inputs.end()}, outputs[0], /* forward */ true);
  return [call] { cpu::mlxp_cpu_rope_append(call); };
}

cpu::RopeAppendCall RopeAppend::call(
    const mx::array& state,
    const mx::array& step,
    const Arrays& places,
    mx::array& out,
    bool forward) const {
  auto& offset = places[0];
  auto& slots = places[1];
  return {
      .element = element_of(state),
      .base = base_,
      .shape =
          {.batch = static_cast<size_t>(state.shape(0)),
           .heads = static_cast<size_t>(layout_.heads),
           .kv_heads = static_cast<size_t>(layout_.kv_heads),
           .time = static_cast<size_t>(step.shape(1)),
           .head_dim = static_cast<size_t>(layout_.head_dim),
           .capacity = static_cast<size_t>(layout_.capacity),
           .dims = static_cast<size_t>(dims_),
           .traditional = traditional_,
           .forward = forward,
           .scale = scale_,
           .multiplier = multiplier_},
      .freqs = places.size() > 2 ? places[2].data<float>() : nullptr,
      .offsets = offset.data<int32_t>(),
      .offset_count = offset.size(),
      .slots = slots.data<int32_t>(),
      .slot_count = slots.size(),
      .state = bytes(state),
      .qkv = const_cast<uint8_t*>(bytes(step)), // written only in the backward direction
      .out = bytes(out),
      .heads = {}};
}

} // namespace mlx_primitives
