// Plans the dispatches of metal/nvidia/linear_gated.metal.
#include <algorithm>

#include "../../metal/linear.h"
#include "ops/activation.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "runtime/encoder.h"

namespace mlx_primitives {

std::optional<mx::array> gated_linear(Arrays inputs, float eps, mx::StreamOrDevice s_) {
  auto s = mx::to_stream(s_);
  auto &x = inputs[0], &gate = inputs[1], &up = inputs[2], &norm = inputs[3];
  // The gradients need the two separate products, which this kernel does not return.
  if (!plans_for_nvidia(s) || Differentiating::now() || row_order() != RowOrder::tokens) {
    return std::nullopt;
  }
  bool fits = x.ndim() > 0 && gate.ndim() == 2 && gate.shape() == up.shape() && norm.ndim() == 1;
  for (auto& input : inputs) {
    fits = fits && input.dtype() == x.dtype() && input.shape(-1) == x.shape(-1);
  }
  bool narrow = x.dtype() == mx::float16 || x.dtype() == mx::bfloat16;
  const size_t k = fits ? x.shape(-1) : 0;
  if (!narrow || k == 0 || k % 8 != 0 || x.size() != k) {
    return std::nullopt;
  }
  auto shape = x.shape();
  shape.back() = gate.shape(0);
  auto dtype = x.dtype();
  for (auto& input : inputs) {
    input = row_contiguous(input, s);
  }
  Linear::State state{false, false, false, ACTIVATION_NONE};
  state.gated = true;
  state.eps = eps;
  return mx::array(std::move(shape), dtype, std::make_shared<Linear>(s, state), std::move(inputs));
}

std::vector<Dispatch> Linear::gated_dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto &x = inputs[0], &gate = inputs[1], &up = inputs[2], &weight = inputs[3];
  auto& out = outputs[0];
  const uint32_t k = x.shape(-1);
  auto simds = std::min<uint32_t>(
      whole_simds("linear", max_threads) / SIMD_WIDTH, uint32_t{LINEAR_TILE_SIMDS});
  const uint32_t floats = LINEAR_GATED_SLOTS + 2 * simds * LINEAR_TILE_ROWS;
  const uint64_t bytes = floats * sizeof(float) + 2 * uint64_t{k} * x.itemsize();
  const auto limits = nvidia_limits(stream());
  auto normed = temporary(x.shape(), x.dtype());
  auto all = RmsNorm(stream(), state_.eps).dispatches({x, weight}, {normed}, max_threads);
  bool aligned = std::ranges::all_of(inputs, [](auto& input) { return input.offset() % 16 == 0; });
  if (!aligned || bytes > limits.threadgroup_bytes) {
    auto add = [&](auto&& more) { std::ranges::move(more, std::back_inserter(all)); };
    State plain{false, false, false, ACTIVATION_NONE};
    plain.order = state_.order;
    Arrays products;
    for (auto& w : {gate, up}) {
      products.push_back(temporary(out.shape(), out.dtype()));
      add(Linear(stream(), plain).dispatches({normed, w}, {products.back()}, max_threads));
    }
    add(Activation(stream(), ACTIVATION_SWIGLU).dispatches(products, outputs, max_threads));
    return all;
  }
  // Add the squares of a row in the same order as the kernel of the norm. So take the norm's plan.
  auto norm = all[0].launch;
  plan_anew(norm, max_threads, stream());
  LinearGatedParams params{};
  params.n = grid_count("linear", "rows of weights", gate.shape(0));
  params.k = k;
  params.sums = k <= SIMD_WIDTH * norm.reads ? uint32_t{SIMD_WIDTH} : norm.group[0];
  params.blocks = static_cast<uint32_t>(ceil_div(params.n, LINEAR_TILE_ROWS / 2));
  params.eps = state_.eps;
  const uint32_t together = std::max(1u, LINEAR_GATED_THREADS / (simds * SIMD_WIDTH));
  Launch launch{
      "mlxp_linear_gated" + type_suffix(x),
      {std::min(params.blocks, limits.cores * together), 1, 1},
      {simds * SIMD_WIDTH, 1, 1},
      round_up(static_cast<uint32_t>(bytes), 16)};
  launch.reads = norm.reads;
  return {{"nvidia/linear_gated", launch, {x, gate, up, weight}, outputs, params}};
}

} // namespace mlx_primitives
