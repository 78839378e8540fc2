#include "ops/norm_grad.h"

#include <algorithm>

#include "../../metal/norm_grad.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {
constexpr auto norm_grad_op = "norm_grad";
} // namespace

Arrays norm_gradients(
    const NormGradKind& kind,
    const mx::array& x,
    const std::optional<mx::array>& weight,
    const mx::array& g,
    const std::optional<mx::array>& added,
    mx::Stream s) {
  Arrays inputs = {x};
  for (auto& input : {weight, std::optional(g), added}) {
    if (input) {
      inputs.push_back(*input);
    }
  }
  for (auto& input : inputs) {
    input = row_contiguous(convert(input, x.dtype(), s), s);
  }
  auto primitive = std::make_shared<NormGrad>(s, kind);
  auto shapes = primitive->output_shapes(inputs);
  return mx::array::make_arrays(
      shapes, std::vector<mx::Dtype>(shapes.size(), x.dtype()), primitive, std::move(inputs));
}

Arrays norm_vjp(
    NormGradKind kind,
    const mx::array& x,
    const NormAffine& affine,
    const mx::array& g,
    const std::optional<mx::array>& added,
    const std::vector<int>& argnums,
    int first,
    mx::Stream s) {
  auto asked = [&](int argnum) {
    return std::find(argnums.begin(), argnums.end(), argnum) != argnums.end();
  };
  int bias = first + (affine.weight ? 1 : 0);
  kind.weighted = affine.weight.has_value();
  kind.added = added.has_value();
  kind.of_weight = affine.weight && asked(first);
  kind.of_bias = affine.bias && asked(bias);
  auto all = norm_gradients(kind, x, affine.weight, g, added, s);
  Arrays gradients;
  for (int argnum : argnums) {
    gradients.push_back(argnum < first ? all[0] : argnum < bias ? all[1] : all.back());
  }
  return gradients;
}

std::optional<mx::array> NormGrad::weight(const Arrays& inputs) const {
  return kind_.weighted ? std::optional(inputs[1]) : std::nullopt;
}

std::optional<mx::array> NormGrad::added(const Arrays& inputs) const {
  return kind_.added ? std::optional(inputs.back()) : std::nullopt;
}

std::vector<size_t> NormGrad::donors(const Arrays& inputs) const {
  std::vector<size_t> all;
  if (kind_.added) {
    all.push_back(inputs.size() - 1);
  }
  if (!kind_.of_weight && !kind_.of_bias) { // whose sums read x and g once more
    all.insert(all.end(), {kind_.weighted ? 2u : 1u, 0u});
  }
  return all;
}

std::vector<mx::Shape> NormGrad::output_shapes(const Arrays& inputs) {
  auto& x = inputs[0].shape();
  std::vector<mx::Shape> shapes = {x};
  shapes.resize(1 + kind_.of_weight + kind_.of_bias, {x.back()});
  return shapes;
}

Arrays NormGrad::plus(const Arrays& inputs, const mx::array& term) {
  if (kind_.added) {
    return {};
  }
  auto kind = kind_;
  kind.added = true;
  return norm_gradients(kind, inputs[0], weight(inputs), g(inputs), term, stream());
}

Arrays NormGrad::compose(const Arrays& inputs) {
  auto s = stream();
  auto wide = [s](const mx::array& x) { return mx::astype(x, mx::float32, s); };
  Arrays primals = {wide(inputs[0])};
  if (auto factor = weight(inputs)) {
    primals.push_back(wide(*factor));
  }
  size_t weights = primals.size();
  if (kind_.of_bias) {
    primals.push_back(mx::zeros({inputs[0].shape(-1)}, mx::float32, s));
  }
  auto norm = [&](const Arrays& x) {
    if (kind_.affine) {
      auto y = mx::multiply(x[0], x[1], s);
      return Arrays{kind_.of_bias ? mx::add(y, x[2], s) : y};
    }
    auto affine = NormAffine::of(x, 1, kind_.weighted, kind_.of_bias);
    return Arrays{
        kind_.centered ? composed_layer_norm(x[0], affine, kind_.eps, s)
                       : mx::fast::rms_norm(x[0], affine.weight, kind_.eps, s)};
  };
  auto gradients = mx::vjp(norm, primals, {wide(g(inputs))}).second;
  if (auto more = added(inputs)) {
    gradients[0] = mx::add(gradients[0], wide(*more), s);
  }
  if (weights > 1 && !kind_.of_weight) {
    gradients.erase(gradients.begin() + 1);
  }
  for (auto& gradient : gradients) {
    gradient = mx::astype(gradient, inputs[0].dtype(), s);
  }
  return gradients;
}

std::pair<Arrays, std::vector<int>> NormGrad::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  if (kind_.of_weight || kind_.of_bias || (kind_.weighted && axes[1] >= 0)) {
    return ComposedPrimitive::vmap(inputs, axes); // each batch entry has separate sums
  }
  int size = batch_size(inputs, axes);
  auto folded = inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i != 1 || !kind_.weighted) {
      folded[i] = batch_first(inputs[i], axes[i], size, stream());
    }
  }
  auto gradients =
      norm_gradients(kind_, folded[0], weight(folded), g(folded), added(folded), stream());
  return {gradients, {0}};
}

bool NormGrad::is_equivalent(const mx::Primitive& other) const {
  return kind_ == static_cast<const NormGrad&>(other).kind_;
}

std::vector<Dispatch> NormGrad::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  if (kind_.affine) {
    refuse_elsewhere("affine");
  }
  auto& x = inputs[0];
  Rows rows(x);
  auto suffix = type_suffix(x);
  NormGradParams params{};
  params.rows = grid_count(norm_grad_op, "rows", rows.count);
  params.axis = rows.axis;
  params.eps = kind_.eps;
  params.weighted = kind_.weighted;
  params.added = kind_.added;
  params.part_rows = std::max<uint32_t>(1, ceil_div(params.rows, NORM_GRAD_PARTS));
  params.vectors = kind_.of_bias ? 2 : 1;
  NormGradSumParams sum{
      rows.axis, static_cast<uint32_t>(ceil_div(params.rows, params.part_rows)), params.vectors};
  auto quads = static_cast<uint32_t>(ceil_div(rows.axis, READS));
  uint32_t each = NORM_GRAD_QUADS;
  auto wanted = round_up(static_cast<uint32_t>(ceil_div(quads, each)), SIMD_WIDTH);
  auto threads = std::min(whole_simds(norm_grad_op, max_threads), wanted);
  bool kept = quads <= each * threads;
  bool together = kept && outputs.size() > 1; // a threadgroup sums the rows that it computes
  uint32_t slots = kind_.centered ? NORM_GRAD_SLOTS : NORM_GRAD_SLOTS / 2;
  Launch along{
      std::string("mlxp_norm_grad_") + (kind_.centered ? "layer" : "rms") +
          (together ? "_rows"
           : kept   ? "_row2"
                    : "_looped") +
          suffix,
      {together ? sum.parts : params.rows, 1, 1},
      {threads, 1, 1},
      round_up(slots * threads / SIMD_WIDTH * uint32_t{sizeof(float)}, 16)};
  auto or_x = [&](const std::optional<mx::array>& input) { return input ? *input : x; };
  auto stats = temporary({static_cast<int>(params.rows), 2}, mx::float32);
  auto sums = temporary(
      {static_cast<int>(sum.parts), static_cast<int>(sum.vectors), x.shape(-1)}, mx::float32);
  auto& gradient = g(inputs);
  Arrays bound = {x, or_x(weight(inputs)), gradient, or_x(added(inputs))};
  std::vector<Dispatch> all = {
      {norm_grad_op, along, bound, {outputs[0], together ? sums : stats}, params}};
  if (outputs.size() == 1) {
    return all;
  }
  auto group = std::min<uint32_t>(max_threads, NORM_GRAD_GROUP);
  if (!together) {
    NormGradPartParams part{params.rows, rows.axis, params.part_rows, params.vectors};
    Launch parts{
        "mlxp_norm_grad_part" + suffix,
        {static_cast<uint32_t>(ceil_div(quads, group)), sum.parts, 1},
        {group, 1, 1}};
    all.emplace_back(norm_grad_op, parts, Arrays{x, gradient, stats}, Arrays{sums}, part);
  }
  Launch last{
      "mlxp_norm_grad_sum" + suffix,
      {static_cast<uint32_t>(ceil_div(rows.axis, group)), 1, 1},
      {group, 1, 1}};
  auto unwanted = temporary({x.shape(-1)}, x.dtype());
  auto& of_weight = kind_.of_weight ? outputs[1] : unwanted;
  auto& of_bias = kind_.of_bias ? outputs.back() : unwanted;
  all.emplace_back(norm_grad_op, last, Arrays{sums}, Arrays{of_weight, of_bias}, sum);
  return all;
}

CpuCall NormGrad::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& x = inputs[0];
  Rows rows(x);
  auto start = [](const std::optional<mx::array>& a) { return a ? bytes(*a) : nullptr; };
  cpu::NormGrad call{
      .x = bytes(x),
      .weight = start(weight(inputs)),
      .g = bytes(g(inputs)),
      .added = start(added(inputs)),
      .of_x = bytes(outputs[0]),
      .of_weight = kind_.of_weight ? bytes(outputs[1]) : nullptr,
      .of_bias = kind_.of_bias ? bytes(outputs.back()) : nullptr,
      .rows = rows.count,
      .axis = rows.axis,
      .eps = kind_.eps,
      .centered = kind_.centered,
      .affine = kind_.affine};
  return [element = element_of(x), call] { cpu::mlxp_cpu_norm_grad(element, call); };
}

} // namespace mlx_primitives
