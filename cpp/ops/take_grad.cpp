#include "ops/take_grad.h"

#include <algorithm>
#include <bit>

#include "../../metal/take_grad.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {

constexpr auto take_grad_op = "take_grad";

mx::array take_grad(
    const mx::array& a, const mx::array& indices, const mx::array& g, mx::Stream s) {
  auto count = static_cast<int>(indices.size());
  auto ids = mx::reshape(indices, {count}, s);
  if (!mx::issubdtype(ids.dtype(), mx::unsignedinteger)) { // negative ones count from the end
    if (mx::size_of(ids.dtype()) < 4) {                    // which may not hold the number of rows
      ids = mx::astype(ids, mx::int32, s);
    }
    auto negative = mx::less(ids, mx::array(0, ids.dtype()), s);
    ids = mx::where(negative, mx::add(ids, mx::array(a.shape(0), ids.dtype()), s), ids, s);
  }
  Arrays inputs = {
      row_contiguous(mx::reshape(g, {count, a.shape(1)}, s), s),
      row_contiguous(convert(ids, mx::uint32, s), s)};
  auto primitive = std::make_shared<TakeGrad>(s, a.shape(0));
  return mx::array(a.shape(), g.dtype(), std::move(primitive), std::move(inputs));
}

} // namespace

mx::array take(const mx::array& a, const mx::array& indices, int axis, mx::StreamOrDevice s_) {
  auto s = mx::to_stream(s_);
  bool typed = a.dtype() == mx::float32 || a.dtype() == mx::float16 || a.dtype() == mx::bfloat16;
  bool rows = a.ndim() == 2 && (axis == 0 || axis == -2) && a.size() > 0 && indices.size() > 0;
  if (!typed || !rows || !a.is_tracer()) {
    return mx::take(a, indices, axis, s);
  }
  auto taken = [s](const Arrays& x) {
    return Arrays{mx::take(x[0], mx::stop_gradient(x[1], s), 0, s)}; // indices have no tangents
  };
  auto gradients = [s](const Arrays& x, const Arrays& cotangents, const Arrays&) {
    return Arrays{take_grad(x[0], x[1], cotangents[0], s), mx::zeros_like(x[1], s)};
  };
  return mx::custom_vjp(taken, gradients)({a, indices})[0];
}

Arrays TakeGrad::compose(const Arrays& inputs) {
  auto s = stream();
  auto taken = [&](const Arrays& x) { return Arrays{mx::take(x[0], inputs[1], 0, s)}; };
  auto matrix = mx::zeros(output_shapes(inputs)[0], inputs[0].dtype(), s);
  return mx::vjp(taken, {matrix}, {inputs[0]}).second;
}

Arrays TakeGrad::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  if (argnums != std::vector<int>{0}) {
    return ComposedPrimitive::vjp(primals, cotangents, argnums, outputs); // MLX refuses it
  }
  return {mlx_primitives::take(cotangents[0], primals[1], 0, stream())};
}

bool TakeGrad::is_equivalent(const mx::Primitive& other) const {
  return rows_ == static_cast<const TakeGrad&>(other).rows_;
}

std::vector<Dispatch> TakeGrad::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto& g = inputs[0];
  auto& ids = inputs[1];
  max_threads = whole_simds(take_grad_op, max_threads);
  auto count = grid_count(take_grad_op, "rows", ids.size());
  TakeGradParams params{
      count,
      std::bit_floor(count),
      static_cast<uint32_t>(rows_),
      static_cast<uint32_t>(g.shape(1))};
  auto sorted = temporary(ids.shape(), ids.dtype());
  auto places = temporary(ids.shape(), mx::uint32);
  auto together = std::min<uint32_t>(ROWS_PER_GROUP, max_threads / SIMD_WIDTH);
  Launch order{
      "mlxp_take_grad_order" + type_suffix(ids),
      {static_cast<uint32_t>(ceil_div(count, together)), 1, 1},
      {together * SIMD_WIDTH, 1, 1}};
  auto quads = static_cast<uint32_t>(ceil_div(params.axis, READS));
  auto threads = std::min({max_threads, uint32_t{TAKE_GRAD_GROUP}, round_up(quads, SIMD_WIDTH)});
  Launch sum{
      "mlxp_take_grad_sum" + type_suffix(g),
      {static_cast<uint32_t>(ceil_div(params.rows, TAKE_GRAD_ROWS)),
       static_cast<uint32_t>(ceil_div(quads, threads)),
       1},
      {threads, 1, 1}};
  return {
      {take_grad_op, order, {ids}, {sorted, places}, TakeGradOrderParams{count}},
      {take_grad_op, sum, {g, sorted, places}, outputs, params}};
}

CpuCall TakeGrad::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& out = outputs[0];
  return [element = element_of(out),
          g = bytes(inputs[0]),
          ids = inputs[1].data<uint32_t>(),
          count = inputs[1].size(),
          to = bytes(out),
          rows = static_cast<size_t>(out.shape(0)),
          axis = static_cast<size_t>(out.shape(1))] {
    cpu::mlxp_cpu_take_grad(element, g, ids, count, to, rows, axis);
  };
}

} // namespace mlx_primitives
