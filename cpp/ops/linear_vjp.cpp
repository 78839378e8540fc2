// The derivatives of products, and the products of mapped batches.
#include "ops/activation.h"
#include "ops/linear.h"

namespace mlx_primitives {

Arrays Linear::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  if (state_.gated) {
    return ComposedPrimitive::vjp(primals, cotangents, argnums, outputs);
  }
  auto s = stream();
  auto& x = primals[0];
  auto& w = primals[1];
  auto g = cotangents[0];
  if (state_.activation != ACTIVATION_NONE) {
    auto before = linear(
        x, w, state_.biased ? std::optional(primals[2]) : std::nullopt, ACTIVATION_NONE, {}, s);
    g = activation_gradient(state_.activation, before, g, s);
  }
  // `product` reads x or w without a copy even if its last two axes are exchanged.
  auto exchange = [&](const mx::array& x) { return mx::swapaxes(x, -1, -2, s); };
  Arrays gradients;
  for (int argnum : argnums) {
    if (argnum == 0 && state_.turned) {
      gradients.push_back(product(state_.columns ? w : exchange(w), g, true, s));
    } else if (argnum == 0) {
      gradients.push_back(product(g, w, state_.columns, s));
    } else if (argnum == 1) {
      // Multiply all rows at once, unless each batch entry has separate weights.
      bool shared = w.ndim() == 2;
      auto rows = [&](const mx::array& x) { return shared ? rows_of(x, s) : x; };
      auto of_w = state_.columns
                      ? product(state_.turned ? x : exchange(rows(x)), rows(g), false, s)
                      : product(exchange(rows(g)), state_.turned ? x : rows(x), state_.turned, s);
      gradients.push_back(convert(of_w, w.dtype(), s));
    } else if (state_.biased && argnum == 2) {
      gradients.push_back(sum_of_rows(g, s));
    } else {
      gradients.push_back(cotangents[0]);
    }
  }
  return gradients;
}

std::pair<Arrays, std::vector<int>> Linear::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  WithRowOrder same(state_.order);
  auto s = stream();
  int size = batch_size(inputs, axes);
  auto& w = inputs[1];
  bool shared_bias = !state_.biased || axes[2] < 0;
  bool plain = !state_.columns && !state_.turned && !state_.gated;
  if (plain && w.ndim() == 2 && axes[1] < 0 && shared_bias) {
    // All entries share one layer, so the mapped axis becomes another leading axis of x.
    auto x = batch_first(inputs[0], axes[0], size, s);
    std::optional<mx::array> added;
    if (auto* last = residual(inputs)) {
      added = batch_first(*last, axes.back(), size, s);
    }
    auto* b = bias(inputs);
    auto kept = b ? std::optional(*b) : std::nullopt;
    return {{linear(x, w, kept, state_.activation, added, s)}, {0}};
  }
  return ComposedPrimitive::vmap(inputs, axes);
}

} // namespace mlx_primitives
