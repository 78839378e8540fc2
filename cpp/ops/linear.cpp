#include "ops/linear.h"

#include "../../metal/linear.h"
#include "ops/activation.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

mx::array linear(
    const mx::array& x,
    const mx::array& w,
    const std::optional<mx::array>& bias,
    ActivationKind activation,
    const std::optional<mx::array>& residual,
    mx::StreamOrDevice s_) {
  constexpr auto op = "linear";
  if (x.ndim() == 0 || w.ndim() != 2 || x.shape(-1) != w.shape(1)) {
    refuse(op, "expected x [..., k] and w [n, k], got ", x.shape(), " and ", w.shape());
  }
  auto shape = x.shape();
  shape.back() = w.shape(0);
  auto dtype = mx::result_type(x, w);
  if (bias) {
    if (bias->ndim() != 1 || bias->shape(0) != w.shape(0)) {
      refuse(op, "expected bias of shape (", w.shape(0), "), got ", bias->shape());
    }
    dtype = mx::promote_types(dtype, bias->dtype());
  }
  if (residual) {
    if (residual->shape() != shape) {
      refuse(op, "expected residual of shape ", shape, ", got ", residual->shape());
    }
    dtype = mx::promote_types(dtype, residual->dtype());
  }
  require_kernel_dtype(op, dtype);

  auto s = mx::to_stream(s_);
  if (activation != ACTIVATION_NONE && Differentiating::now()) {
    // The gradient needs the sum before the activation. So build separate nodes that keep the sum,
    // because recomputing it would cost another product.
    auto y = linear(convert(x, dtype, s), w, bias, ACTIVATION_NONE, {}, s);
    y = mlx_primitives::activation(activation, y, s);
    return residual ? mx::add(y, convert(*residual, dtype, s), s) : y;
  }
  Arrays inputs = {x, w};
  if (bias) {
    inputs.push_back(*bias);
  }
  if (residual) {
    inputs.push_back(*residual);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto type = i == 1 ? read_as(w.dtype(), dtype, s) : dtype;
    inputs[i] = row_contiguous(convert(inputs[i], type, s), s);
  }
  Linear::State state{false, bias.has_value(), residual.has_value(), activation};
  return mx::array(shape, dtype, std::make_shared<Linear>(s, state), std::move(inputs));
}

namespace {

/** Whether x is the result of an MLX op that only exchanges the last two axes of its input. */
bool exchanges(const mx::array& x) {
  // This array is never destroyed, because threads may still build graphs while the process ends.
  static const auto& sample = *new mx::array(
      mx::swapaxes(mx::array({1, 2}, mx::float32, nullptr, {}), 0, 1, mx::Device::cpu));
  if (!x.has_primitive() || std::string_view(x.primitive().name()) != sample.primitive().name()) {
    return false;
  }
  auto axes = static_cast<mx::Transpose&>(x.primitive()).state();
  if (axes.size() < 2) {
    return false;
  }
  std::swap(axes.end()[-1], axes.end()[-2]);
  return std::is_sorted(axes.begin(), axes.end());
}

/** Whether x is in memory with its last two axes exchanged. */
bool lies_in_columns(const mx::array& x) {
  if (x.has_primitive() || !x.data_shared_ptr()) {
    return false;
  }
  auto [rows, columns] = std::pair(x.shape(-2), x.shape(-1));
  int64_t each = int64_t{rows} * columns;
  bool turned = x.strides(-2) == 1 && x.strides(-1) == rows && rows > 1 && columns > 1;
  for (int axis = static_cast<int>(x.ndim()) - 3; axis >= 0; --axis) {
    turned = turned && x.strides(axis) == each;
    each *= x.shape(axis);
  }
  return turned;
}

/** Returns x with its last two axes exchanged, if this needs no copy. */
std::optional<mx::array> exchanged(const mx::array& x, mx::Stream s) {
  if (exchanges(x)) {
    return x.inputs()[0];
  }
  return lies_in_columns(x) ? std::optional(mx::swapaxes(x, -1, -2, s)) : std::nullopt;
}

} // namespace

mx::array matmul(const mx::array& a_, const mx::array& b_, bool transposed, mx::StreamOrDevice s_) {
  constexpr auto op = "matmul";
  auto s = mx::to_stream(s_);
  auto a = a_;
  auto b = b_;
  auto lying = b.ndim() >= 2 && !transposed ? exchanged(b, s) : std::nullopt;
  if (lying) {
    b = *lying;
    transposed = true;
  }
  if (a.ndim() < 2 || b.ndim() < 2 || a.shape(-1) != b.shape(transposed ? -1 : -2)) {
    const char* wanted = transposed ? "b [..., n, k]" : "b [..., k, n]";
    refuse(op, "expected a [..., m, k] and ", wanted, ", got ", a.shape(), " and ", b.shape());
  }
  auto dtype = mx::result_type(a, b);
  require_kernel_dtype(op, dtype);
  bool turned = false;
  bool able = s.device == mx::Device::cpu && !simulating() && row_order() != RowOrder::tokens;
  if (able && a.shape(-2) > static_cast<int>(LINEAR_FEW_ROWS) && (a.ndim() == 2 || b.ndim() > 2)) {
    lying = exchanged(a, s);
    turned = lying.has_value();
    a = lying.value_or(a);
  }
  Arrays inputs = {a, b};
  if (b.ndim() > 2) { // otherwise, all rows of a use one matrix b
    mx::Shape leading = mx::broadcast_shapes(
        mx::Shape(a.shape().begin(), a.shape().end() - 2),
        mx::Shape(b.shape().begin(), b.shape().end() - 2));
    for (auto& input : inputs) {
      auto shape = leading;
      shape.insert(shape.end(), input.shape().end() - 2, input.shape().end());
      input = mx::broadcast_to(input, shape, s);
    }
  }
  for (auto& input : inputs) {
    input = row_contiguous(convert(input, dtype, s), s);
  }
  auto shape = inputs[0].shape();
  shape.end()[-2] = inputs[0].shape(turned ? -1 : -2);
  shape.back() = b.shape(transposed ? -2 : -1);
  Linear::State state{!transposed, false, false, ACTIVATION_NONE};
  state.turned = turned;
  return mx::array(shape, dtype, std::make_shared<Linear>(s, state), std::move(inputs));
}

mx::array product(const mx::array& a, const mx::array& b, bool transposed, mx::StreamOrDevice s_) {
  auto s = mx::to_stream(s_);
  auto dtype = mx::result_type(a, b);
  bool typed = dtype == mx::float32 || dtype == mx::float16 || dtype == mx::bfloat16;
  // On systems with Metal, MLX uses Apple's Accelerate for products on the CPU.
  bool ours = s.device == mx::Device::cpu && !simulating() && !mx::metal::is_available() && typed &&
              a.ndim() >= 1 && b.ndim() >= 1;
  if (ours && a.ndim() == 1 && b.ndim() > 1) {
    return mx::squeeze(product(mx::expand_dims(a, 0, s), b, transposed, s), -2, s);
  }
  if (ours && b.ndim() == 1) {
    return mx::squeeze(product(a, mx::expand_dims(b, 0, s), true, s), -1, s);
  }
  if (!ours || a.shape(-1) != b.shape(transposed ? -1 : -2)) {
    return mx::matmul(a, transposed ? mx::swapaxes(b, -1, -2, s) : b, s);
  }
  return matmul(a, b, transposed, s);
}

mx::array rows_of(const mx::array& x, mx::Stream s) {
  int count = 1;
  for (size_t axis = 0; axis + 1 < x.ndim(); ++axis) {
    count *= x.shape(axis);
  }
  return mx::reshape(x, {count, x.shape(-1)}, s);
}

mx::array sum_of_rows(const mx::array& x, mx::Stream s) {
  auto rows = rows_of(x, s);
  auto ones = mx::ones({1, rows.shape(0)}, x.dtype(), s);
  return mx::reshape(product(ones, rows, false, s), {x.shape(-1)}, s);
}

const mx::array* Linear::bias(const Arrays& inputs) const {
  return state_.biased ? &inputs[2] : nullptr;
}

const mx::array* Linear::residual(const Arrays& inputs) const {
  return state_.residual ? &inputs.back() : nullptr;
}

LinearShape Linear::shape(const Arrays& inputs) const {
  auto& x = inputs[0].shape();
  auto& w = inputs[1].shape();
  auto product = [](auto from, auto to) {
    uint64_t count = 1;
    for (; from != to; ++from) {
      count *= *from;
    }
    return count;
  };
  LinearShape shape{};
  shape.batch = product(w.begin(), w.end() - 2);
  auto leading = w.size() > 2 ? x.end() - 2 : x.begin();
  shape.m = product(leading, x.end() - 1);
  shape.k = x.back();
  if (state_.turned) {
    shape.m = x.back();
    shape.k = x.end()[-2];
  }
  shape.n = w[w.size() - (state_.columns ? 1 : 2)];
  shape.columns = state_.columns;
  return shape;
}

Arrays Linear::compose(const Arrays& inputs) {
  auto s = stream();
  auto& w = inputs[1];
  if (state_.gated) {
    auto y = mx::fast::rms_norm(inputs[0], inputs[3], state_.eps, s);
    auto gate = mx::matmul(y, mx::swapaxes(w, -1, -2, s), s);
    auto up = mx::matmul(y, mx::swapaxes(inputs[2], -1, -2, s), s);
    return {mx::multiply(composed_activation(ACTIVATION_SILU, gate, s), up, s)};
  }
  auto x = state_.turned ? mx::swapaxes(inputs[0], -1, -2, s) : inputs[0];
  auto y = mx::matmul(x, state_.columns ? w : mx::swapaxes(w, -1, -2, s), s);
  if (auto* added = bias(inputs)) {
    y = mx::add(y, *added, s);
  }
  y = composed_activation(state_.activation, y, s);
  if (auto* added = residual(inputs)) {
    y = mx::add(y, *added, s);
  }
  return {y};
}

bool Linear::is_equivalent(const mx::Primitive& other) const {
  return state_ == static_cast<const Linear&>(other).state_;
}

std::vector<mx::Shape> Linear::output_shapes(const Arrays& inputs) {
  auto shape = inputs[0].shape();
  if (state_.turned) {
    shape.end()[-2] = shape.back();
  }
  shape.back() = inputs[1].shape(state_.columns ? -1 : -2);
  return {shape};
}

namespace {

Launch plan(
    const LinearShape& shape,
    const std::string& suffix,
    uint32_t item_bytes,
    uint32_t max_threads,
    RowOrder order) {
  grid_count("linear", "elements of an axis", std::max({shape.m, shape.n, shape.k}));
  auto batch = grid_count("linear", "batch entries", shape.batch);
  const uint32_t simds = whole_simds("linear", max_threads) / SIMD_WIDTH;
  auto groups = [](uint64_t extent, uint32_t part) {
    return static_cast<uint32_t>(ceil_div(extent, part));
  };
  if (takes_few_rows(shape, order)) {
    uint32_t together = std::min<uint32_t>(simds, LINEAR_SIMDS);
    together = std::clamp<uint32_t>(groups(shape.n, LINEAR_SIMD_ROWS), 1, together);
    const uint32_t rows = shape.m <= 1   ? 1
                          : shape.m <= 2 ? 2
                          : shape.m <= 4 ? 4
                                         : uint32_t{LINEAR_FEW_ROWS};
    return {
        "mlxp_linear_few" + std::to_string(rows) + suffix,
        {groups(shape.n, together * LINEAR_SIMD_ROWS), groups(shape.m, rows), batch},
        {together * SIMD_WIDTH, 1, 1},
        LINEAR_STAGED * sizeof(float)};
  }
  // The number of squares along n and m in a threadgroup. Each SIMD group computes one square. A
  // second square that would only contain padding is left out.
  const uint32_t wide = simds >= 2 && shape.n > LINEAR_SQUARE ? 2 : 1;
  const uint32_t high = simds >= 4 && wide == 2 && shape.m > LINEAR_SQUARE ? 2 : 1;
  const uint32_t tall = high * LINEAR_SQUARE;
  const uint32_t broad = wide * LINEAR_SQUARE;
  const uint32_t x_tile = tall * (LINEAR_DEPTH_BYTES + LINEAR_PAD_BYTES);
  const uint32_t w_tile =
      shape.columns ? LINEAR_DEPTH_BYTES / item_bytes * (broad * item_bytes + LINEAR_PAD_BYTES)
                    : broad * (LINEAR_DEPTH_BYTES + LINEAR_PAD_BYTES);
  const uint32_t strips = high * wide * 8 * LINEAR_SQUARE * sizeof(float);
  std::string kernel = shape.columns ? "mlxp_linear_columns_" : "mlxp_linear_tiled_";
  kernel += std::to_string(high) + "x" + std::to_string(wide);
  return {
      kernel + suffix,
      {groups(shape.n, broad), groups(shape.m, tall), batch},
      {high * wide * SIMD_WIDTH, 1, 1},
      std::max(round_up(x_tile + w_tile, 16), strips)};
}

} // namespace

std::vector<Dispatch> Linear::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  if (cpu_alone(inputs)) {
    refuse_elsewhere(state_.turned ? "matmul" : "linear");
  }
  if (state_.gated) {
    return gated_dispatches(inputs, outputs, max_threads);
  }
  auto& x = inputs[0];
  auto& w = inputs[1];
  auto extents = shape(inputs);
  LinearParams params{};
  params.m = static_cast<uint32_t>(extents.m);
  params.n = static_cast<uint32_t>(extents.n);
  params.k = static_cast<uint32_t>(extents.k);
  params.w_batched = w.ndim() > 2;
  params.biased = state_.biased;
  params.residual = state_.residual;
  params.activation = state_.activation;
  auto* added = bias(inputs);
  auto* last = residual(inputs);
  // Metal requires that buffers that the kernel does not use are bound too.
  Arrays bound = {x, w, added ? *added : x, last ? *last : x};
  if (takes_few_rows(extents, state_.order) && takes_tiles(extents, x, w, stream())) {
    auto launch = plan_tiles(extents, type_suffix(x), max_threads);
    return {{"nvidia/linear_tiles", launch, std::move(bound), outputs, params}};
  }
  auto launch =
      plan(extents, type_suffix(x), static_cast<uint32_t>(x.itemsize()), max_threads, state_.order);
  return {{"linear", launch, std::move(bound), outputs, params}};
}

CpuCall Linear::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  if (state_.gated) {
    refuse("linear", "expected a GPU's stream for gated rows, got a CPU's");
  }
  auto& x = inputs[0];
  auto& w = inputs[1];
  auto extents = shape(inputs);
  auto* added = bias(inputs);
  auto* last = residual(inputs);
  cpu::LinearCall call{
      .element = element_of(x),
      .w_batched = w.ndim() > 2,
      .columns = extents.columns,
      .turned = state_.turned,
      .activation = static_cast<uint8_t>(state_.activation),
      .order = state_.order,
      .of_w = element_of(w),
      .batch = extents.batch,
      .m = extents.m,
      .n = extents.n,
      .k = extents.k,
      .x = bytes(x),
      .w = bytes(w),
      .bias = added ? bytes(*added) : nullptr,
      .residual = last ? bytes(*last) : nullptr,
      .out = bytes(outputs[0])};
  return [call] { cpu::mlxp_cpu_linear(call); };
}

} // namespace mlx_primitives
