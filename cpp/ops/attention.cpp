#include "ops/attention.h"

#include <cmath>

namespace mlx_primitives {

namespace {
constexpr int max_dim = 256;

using Optional = std::optional<mx::array>;

void require_rank(const char* name, const mx::array& x) {
  if (x.ndim() != 4) {
    refuse(attention_op, "expected ", name, " of rank 4, got shape ", x.shape());
  }
}

} // namespace

void check_attention(
    const mx::Shape& q, const mx::Shape& k, const mx::Shape& v, const AttentionRules& rules) {
  if (!std::equal(k.begin(), k.begin() + 3, v.begin())) {
    refuse(attention_op, "expected as many values as keys, got ", v, " and ", k);
  }
  if (q[0] != k[0] || q[3] != k[3]) {
    refuse(attention_op, "expected keys of batch ", q[0], " and dimension ", q[3], ", got ", k);
  }
  if (k[1] == 0 ? q[1] != 0 : q[1] % k[1] != 0) {
    refuse(attention_op, "expected a multiple of ", k[1], " heads, got ", q[1]);
  }
  for (int dim : {k[3], v[3]}) {
    if (dim > max_dim) {
      refuse(attention_op, "expected a head dimension of at most ", max_dim, ", got ", dim);
    }
  }
  if (!std::isfinite(rules.scale)) {
    refuse(attention_op, "expected a finite scale, got ", rules.scale);
  }
  if (rules.window < 0) {
    refuse(attention_op, "expected a window of at least one position, got ", rules.window);
  }
  if (!(rules.soft_cap >= 0 && std::isfinite(rules.soft_cap))) {
    refuse(attention_op, "expected a positive soft cap, got ", rules.soft_cap);
  }
}

void push_mask_and_sinks(
    Arrays& inputs,
    const Optional& mask,
    const Optional& sinks,
    const mx::Shape& scores,
    mx::Dtype dtype,
    mx::Stream s) {
  if (mask) {
    if (mx::promote_types(mask->dtype(), dtype) != dtype) {
      refuse(
          attention_op, "expected a mask whose type promotes to ", dtype, ", got ", mask->dtype());
    }
    bool fits = mask->ndim() <= 4;
    for (int i = 1; fits && i <= static_cast<int>(mask->ndim()); ++i) {
      fits = mask->shape(-i) == 1 || mask->shape(-i) == scores[4 - i];
    }
    if (!fits) {
      refuse(
          attention_op,
          "expected a mask that broadcasts to ",
          scores,
          ", got shape ",
          mask->shape());
    }
    auto typed = mask->dtype() == mx::bool_ ? *mask : convert(*mask, dtype, s);
    inputs.push_back(mx::broadcast_to(typed, scores, s));
  }
  if (sinks) {
    if (sinks->ndim() != 1 || sinks->shape(0) != scores[1]) {
      refuse(attention_op, "expected sinks of shape (", scores[1], "), got ", sinks->shape());
    }
    if (mx::promote_types(sinks->dtype(), dtype) != dtype) {
      refuse(
          attention_op, "expected sinks whose type promotes to ", dtype, ", got ", sinks->dtype());
    }
    inputs.push_back(row_contiguous(convert(*sinks, dtype, s), s));
  }
}

namespace {

mx::array node(
    Arrays inputs,
    const mx::Shape& keys,
    int value_dim,
    const AttentionRules& rules,
    const Optional& mask,
    const Optional& sinks,
    int bits,
    int group_size,
    mx::Stream s) {
  auto& q = inputs[0];
  auto shape = q.shape();
  auto dtype = q.dtype();
  auto scores = shape;
  scores[3] = keys[2];
  shape[3] = value_dim;
  push_mask_and_sinks(inputs, mask, sinks, scores, dtype, s);
  if (keys[2] == 0) {
    return mx::zeros(shape, dtype, s); // the sum over no keys is 0
  }
  auto primitive =
      std::make_shared<Attention>(s, rules, mask.has_value(), sinks.has_value(), bits, group_size);
  return mx::array(std::move(shape), dtype, std::move(primitive), std::move(inputs));
}

/** Checks quantized rows and returns the shape of the numbers that they encode. */
mx::Shape check_quantized(const char* name, const QuantizedRows& rows, int bits, int group_size) {
  for (auto* x : {&rows.packed, &rows.scales, &rows.biases}) {
    require_rank(name, *x);
  }
  if (rows.packed.dtype() != mx::uint32) {
    refuse(attention_op, "expected packed ", name, " of uint32, got ", rows.packed.dtype());
  }
  auto shape = rows.packed.shape();
  shape[3] = static_cast<int>(int64_t{shape[3]} * 32 / bits);
  auto groups = shape;
  groups[3] = shape[3] / group_size;
  if (shape[3] % group_size != 0 || rows.scales.shape() != groups ||
      rows.biases.shape() != groups) {
    refuse(
        attention_op,
        "expected ",
        name,
        " of whole groups of ",
        group_size,
        " with scales and biases ",
        groups,
        ", got ",
        rows.packed.shape(),
        ", ",
        rows.scales.shape(),
        " and ",
        rows.biases.shape());
  }
  return shape;
}

} // namespace

mx::array attention(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const AttentionRules& rules,
    const Optional& mask,
    const Optional& sinks,
    mx::StreamOrDevice s_) {
  require_rank("queries", q);
  require_rank("keys", k);
  require_rank("values", v);
  check_attention(q.shape(), k.shape(), v.shape(), rules);
  auto dtype = mx::result_type(q, k, v);
  require_kernel_dtype(attention_op, dtype);
  auto s = mx::to_stream(s_);
  Arrays inputs;
  for (auto* x : {&q, &k, &v}) {
    inputs.push_back(convert(*x, dtype, s));
  }
  return node(std::move(inputs), k.shape(), v.shape(3), rules, mask, sinks, 0, 0, s);
}

mx::array attention_quantized(
    const mx::array& q,
    const QuantizedRows& k,
    const QuantizedRows& v,
    int bits,
    int group_size,
    const AttentionRules& rules,
    const Optional& mask,
    const Optional& sinks,
    mx::StreamOrDevice s_) {
  if (bits != 4 && bits != 8) {
    refuse(attention_op, "expected 4 or 8 bits, got ", bits);
  }
  if (group_size != 32 && group_size != 64 && group_size != 128) {
    refuse(attention_op, "expected groups of 32, 64 or 128, got ", group_size);
  }
  require_rank("queries", q);
  auto keys = check_quantized("keys", k, bits, group_size);
  auto values = check_quantized("values", v, bits, group_size);
  check_attention(q.shape(), keys, values, rules);
  auto dtype = mx::promote_types(
      mx::result_type(q, k.scales, k.biases), mx::result_type(v.scales, v.biases));
  require_kernel_dtype(attention_op, dtype);
  auto s = mx::to_stream(s_);
  Arrays inputs = {convert(q, dtype, s)};
  for (auto* rows : {&k, &v}) {
    inputs.push_back(rows->packed);
    inputs.push_back(convert(rows->scales, dtype, s));
    inputs.push_back(convert(rows->biases, dtype, s));
  }
  return node(std::move(inputs), keys, values[3], rules, mask, sinks, bits, group_size, s);
}

std::vector<mx::Shape> Attention::output_shapes(const Arrays& inputs) {
  auto shape = inputs[0].shape();
  shape[3] = dim(inputs, values());
  return {shape};
}

void Attention::lay_out(mx::array& out) const {
  int64_t heads = out.shape(1);
  int64_t queries = out.shape(2);
  int64_t dim = out.shape(3);
  if (lays_out(out)) {
    mx::Strides strides = {queries * heads * dim, dim, heads * dim, 1};
    auto flags = out.flags();
    flags.row_contiguous = false;
    flags.col_contiguous = false;
    out.copy_shared_buffer(out, strides, flags, out.data_size());
  }
}

Arrays joined_to_batch(
    const Arrays& inputs, const std::vector<int>& axes, int count, int size, mx::Stream s) {
  int batch = batch_first(inputs[0], axes[0], size, s).shape(1);
  Arrays all;
  for (int i = 0; i < count; ++i) {
    // The result is a view without a copy if the batch size is 1 or the mapped axis is the first
    // axis.
    auto x = batch_first(inputs[i], axes[i], size, s);
    all.push_back(batch == 1 ? mx::squeeze(x, 1, s) : mx::flatten(x, 0, 1, s));
  }
  return all;
}

std::pair<Arrays, std::vector<int>> Attention::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  if (sinks_ && axes[sinks()] >= 0) {
    return ComposedPrimitive::vmap(inputs, axes); // our kernel takes one set of sinks
  }
  auto s = stream();
  int size = batch_size(inputs, axes);
  int batch = batch_first(inputs[0], axes[0], size, s).shape(1);
  auto all = joined_to_batch(inputs, axes, sinks(), size, s);
  if (sinks_) {
    all.push_back(inputs[sinks()]);
  }
  auto shape = output_shapes(all)[0];
  auto dtype = all[0].dtype();
  auto out = mx::array(
      shape,
      dtype,
      std::make_shared<Attention>(s, rules_, masked_, sinks_, bits_, group_size_),
      std::move(all));
  return {{mx::unflatten(out, 0, {size, batch}, s)}, {0}};
}

bool Attention::is_equivalent(const mx::Primitive& other_) const {
  auto& other = static_cast<const Attention&>(other_);
  return rules_ == other.rules_ && masked_ == other.masked_ && sinks_ == other.sinks_ &&
         bits_ == other.bits_ && group_size_ == other.group_size_;
}

} // namespace mlx_primitives
