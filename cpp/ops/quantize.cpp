#include "ops/quantize.h"

namespace mlx_primitives {

namespace {

void check_format(const char* op, int group_size, int bits) {
  if (group_size != 32 && group_size != 64 && group_size != 128) {
    refuse(op, "expected a group size of 32, 64 or 128, got ", group_size);
  }
  if (bits < 2 || bits > 8 || bits == 7) {
    refuse(op, "expected 2, 3, 4, 5, 6 or 8 bits, got ", bits);
  }
}

/** The shape with another last dimension. */
mx::Shape with_last(mx::Shape shape, int64_t last) {
  shape.back() = static_cast<mx::ShapeElem>(last);
  return shape;
}

} // namespace

std::vector<mx::array> quantize(
    const mx::array& x, int group_size, int bits, mx::StreamOrDevice s_) {
  constexpr auto op = "quantize";
  require_kernel_dtype(op, x.dtype());
  check_format(op, group_size, bits);
  if (x.ndim() < 2 || x.shape(-1) % group_size != 0) {
    refuse(
        op,
        "expected rank 2 or more and a last axis in multiples of ",
        group_size,
        ", got shape ",
        x.shape());
  }
  auto s = mx::to_stream(s_);
  int64_t groups = x.shape(-1) / group_size;
  return mx::array::make_arrays(
      {with_last(x.shape(), groups * (group_size / 32) * bits),
       with_last(x.shape(), groups),
       with_last(x.shape(), groups)},
      {mx::uint32, x.dtype(), x.dtype()},
      std::make_shared<Quantize>(s, group_size, bits),
      {row_contiguous(x, s)});
}

mx::array dequantize(
    const mx::array& packed,
    const mx::array& scales,
    const mx::array& biases,
    int group_size,
    int bits,
    mx::StreamOrDevice s_) {
  constexpr auto op = "dequantize";
  check_format(op, group_size, bits);
  require_kernel_dtype(op, scales.dtype());
  if (packed.dtype() != mx::uint32) {
    refuse(op, "expected codes in uint32, got ", packed.dtype());
  }
  if (biases.dtype() != scales.dtype() || biases.shape() != scales.shape()) {
    refuse(
        op,
        "expected biases as scales ",
        scales.dtype(),
        " ",
        scales.shape(),
        ", got ",
        biases.dtype(),
        " ",
        biases.shape());
  }
  int64_t words = int64_t{group_size / 32} * bits;
  if (scales.ndim() < 2 || packed.shape() != with_last(scales.shape(), scales.shape(-1) * words)) {
    refuse(
        op,
        "expected rank 2 or more and ",
        words,
        " words of codes for each of scales ",
        scales.shape(),
        ", got ",
        packed.shape());
  }
  auto s = mx::to_stream(s_);
  return mx::array(
      with_last(scales.shape(), int64_t{scales.shape(-1)} * group_size),
      scales.dtype(),
      std::make_shared<Dequantize>(s, group_size, bits),
      {row_contiguous(packed, s), row_contiguous(scales, s), row_contiguous(biases, s)});
}

std::vector<mx::array> Quantize::compose(const std::vector<mx::array>& inputs) {
  return mx::quantize(inputs[0], group_size_, bits_, "affine", std::nullopt, stream());
}

std::pair<std::vector<mx::array>, std::vector<int>> Quantize::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  auto x = batch_first(inputs[0], axes[0], batch_size(inputs, axes), stream());
  return {quantize(x, group_size_, bits_, stream()), {0, 0, 0}};
}

bool Quantize::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const Quantize&>(other);
  return group_size_ == o.group_size_ && bits_ == o.bits_;
}

std::vector<mx::Shape> Quantize::output_shapes(const std::vector<mx::array>& inputs) {
  auto& x = inputs[0];
  int64_t groups = x.shape(-1) / group_size_;
  return {
      with_last(x.shape(), groups * (group_size_ / 32) * bits_),
      with_last(x.shape(), groups),
      with_last(x.shape(), groups)};
}

std::vector<mx::array> Dequantize::compose(const std::vector<mx::array>& inputs) {
  return {mx::dequantize(
      inputs[0],
      inputs[1],
      inputs[2],
      group_size_,
      bits_,
      "affine",
      std::nullopt,
      std::nullopt,
      stream())};
}

std::pair<std::vector<mx::array>, std::vector<int>> Dequantize::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  int size = batch_size(inputs, axes);
  auto s = stream();
  auto first = [&](int i) { return batch_first(inputs[i], axes[i], size, s); };
  return {{dequantize(first(0), first(1), first(2), group_size_, bits_, s)}, {0}};
}

bool Dequantize::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const Dequantize&>(other);
  return group_size_ == o.group_size_ && bits_ == o.bits_;
}

std::vector<mx::Shape> Dequantize::output_shapes(const std::vector<mx::array>& inputs) {
  auto& scales = inputs[1];
  return {with_last(scales.shape(), int64_t{scales.shape(-1)} * group_size_)};
}

} // namespace mlx_primitives
