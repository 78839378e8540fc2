// Builds an Attention from MLX's ops.
#include <limits>

#include "ops/attention.h"
#include "runtime/encoder.h"
#include "runtime/mlx_patches.h"

namespace mlx_primitives {

namespace {

/** A [T, S] mask: whether each query may see each key under the causal rule and the window. */
mx::array seen(int queries, int keys, const AttentionRules& rules, mx::Stream s) {
  auto position = mx::expand_dims(mx::arange(keys - queries, keys, s), 1, s);
  auto key = mx::expand_dims(mx::arange(0, keys, s), 0, s);
  auto window = mx::greater(key, mx::subtract(position, mx::array(rules.window), s), s);
  if (!rules.causal) {
    return window;
  }
  auto causal = mx::greater_equal(position, key, s);
  return rules.window > 0 ? mx::logical_and(causal, window, s) : causal;
}

float lowest(mx::Dtype dtype) {
  return dtype == mx::float16    ? -65504.0f
         : dtype == mx::bfloat16 ? -3.38953139e38f
                                 : std::numeric_limits<float>::lowest();
}

} // namespace

Arrays Attention::compose(const Arrays& inputs) {
  // On an NVIDIA GPU, MLX's batched product with packed matrices refuses views, such as the arrays
  // of a cache. It also refuses matrices that several heads share. So dequantize the matrices
  // there.
  return composition(inputs, is_cuda(stream()));
}

Arrays dequantizing_composition(const mx::array& ours) {
  auto* attention = ours.has_primitive() ? dynamic_cast<Attention*>(&ours.primitive()) : nullptr;
  if (!attention) {
    refuse("composition", "expected a lazy result of attention, got another array");
  }
  return attention->composition(ours.inputs(), true);
}

Arrays Attention::composition(const Arrays& inputs, bool dequantizes) {
  auto s = stream();
  auto& q = inputs[0];
  auto mask_input = masked_ ? std::optional(inputs[mask()]) : std::nullopt;
  auto sinks_input = sinks_ ? std::optional(inputs[sinks()]) : std::nullopt;
  bool simple = rules_.soft_cap == 0 && rules_.window == 0 && !(rules_.causal && masked_);
  if (bits_ == 0 && simple) {
    std::string mode = rules_.causal ? "causal" : masked_ ? "array" : "";
    return {built_in_attention(
        q, inputs[1], inputs[2], rules_.scale, mode, mask_input, sinks_input, s)};
  }

  // The queries that share a key/value head become one axis: [B, Hkv, n, T, D].
  auto dtype = q.dtype();
  int heads = q.shape(1);
  int kv_heads = inputs[1].shape(1);
  int group = kv_heads > 0 ? heads / kv_heads : 1;
  auto grouped = [&](const mx::array& x) { return mx::unflatten(x, 1, {kv_heads, group}, s); };
  auto row = [&](int i) { return mx::expand_dims(inputs[i], 2, s); };
  auto product = [&](const mx::array& x, int at, bool transpose) {
    if (bits_ > 0 && !dequantizes) {
      return mx::quantized_matmul(
          x, row(at), row(at + 1), row(at + 2), transpose, group_size_, bits_, "affine", s);
    }
    auto rows = bits_ == 0 ? row(at)
                           : mx::dequantize(
                                 row(at),
                                 row(at + 1),
                                 row(at + 2),
                                 group_size_,
                                 bits_,
                                 "affine",
                                 std::nullopt,
                                 std::nullopt,
                                 s);
    return mx::matmul(x, transpose ? mx::swapaxes(rows, -1, -2, s) : rows, s);
  };
  auto scores = product(grouped(mx::multiply(q, mx::array(rules_.scale, dtype), s)), 1, true);
  if (rules_.soft_cap > 0) {
    auto cap = mx::array(rules_.soft_cap, dtype);
    scores = mx::multiply(mx::tanh(mx::divide(scores, cap, s), s), cap, s);
  }
  auto hidden = mx::array(lowest(dtype), dtype);
  if (mask_input) {
    auto mask = grouped(*mask_input);
    scores =
        mask.dtype() == mx::bool_ ? mx::where(mask, scores, hidden, s) : mx::add(scores, mask, s);
  }
  if (rules_.causal || rules_.window > 0) {
    auto see = seen(scores.shape(-2), scores.shape(-1), rules_, s);
    scores = mx::where(see, scores, hidden, s);
  }
  if (sinks_input) {
    auto shape = scores.shape();
    shape.back() = 1;
    auto sink = mx::reshape(*sinks_input, {1, kv_heads, group, 1, 1}, s);
    scores = mx::concatenate({mx::broadcast_to(sink, shape, s), scores}, -1, s);
  }
  auto weights = mx::softmax(scores, -1, true, s);
  if (sinks_input) {
    mx::Shape start(5, 0);
    start.back() = 1;
    weights = mx::slice(weights, start, weights.shape(), s);
  }
  return {mx::flatten(product(weights, values(), false), 1, 2, s)};
}

} // namespace mlx_primitives
