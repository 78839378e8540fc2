#include "ops/quantized_matmul.h"

namespace mlx_primitives {

namespace {
/**
 * The modes in order of their enumerators, and their only group size and bits, or 0 if they vary.
 */
constexpr struct {
  const char* name;
  int group_size, bits;
} MODES[] = {{"affine", 0, 0}, {"mxfp4", 32, 4}, {"mxfp8", 32, 8}, {"nvfp4", 16, 4}};
} // namespace

const char* QuantizedFormat::name() const {
  return MODES[static_cast<size_t>(mode)].name;
}

mx::array mlx_product(
    const mx::array& x,
    const QuantizedWeight& weight,
    const QuantizedFormat& format,
    mx::Stream s) {
  auto of = [&](const mx::array& rows) {
    auto& [packed, scales, biases] = weight;
    auto& [group, bits, mode] = format;
    return mx::quantized_matmul(rows, packed, scales, biases, true, group, bits, format.name(), s);
  };
  // MLX's kernels for NVIDIA GPUs read the number of rows of a vector, which has none.
  return x.ndim() == 1 ? mx::squeeze(of(mx::expand_dims(x, 0, s)), 0, s) : of(x);
}

void require_format(const char* op, const QuantizedFormat& format) {
  auto [group, bits, mode] = format;
  if (!format.affine()) {
    auto [name, its_group, its_bits] = MODES[static_cast<size_t>(mode)];
    if (group != its_group || bits != its_bits) {
      refuse(
          op,
          "expected groups of ",
          its_group,
          " and ",
          its_bits,
          " bits for ",
          name,
          ", got ",
          group,
          " and ",
          bits);
    }
    return;
  }
  if (group != 32 && group != 64 && group != 128) {
    refuse(op, "expected groups of 32, 64 or 128, got ", group);
  }
  if (bits < 2 || bits > 8 || bits == 7) {
    refuse(op, "expected 2, 3, 4, 5, 6 or 8 bits, got ", bits);
  }
}

void require_quantized(const char* op, const QuantizedWeight& w, const QuantizedFormat& format) {
  require_format(op, format);
  if (w.packed.ndim() != 2 || w.packed.dtype() != mx::uint32) {
    refuse(
        op,
        "expected packed weights as a uint32 matrix, got ",
        w.packed.dtype(),
        " of shape ",
        w.packed.shape());
  }
  if (w.packed.shape(1) == 0) {
    refuse(op, "expected at least one group a row, got shape ", w.packed.shape());
  }
  auto bits = int64_t{w.packed.shape(1)} * 32;
  auto group_bits = int64_t{format.bits} * format.group_size;
  if (bits % group_bits != 0 || w.packed.shape(1) % format.bits != 0) {
    refuse(
        op,
        "expected rows of whole groups and of 32 weights or a multiple, got ",
        w.packed.shape(1),
        " words a row");
  }
  mx::Shape groups = {w.packed.shape(0), static_cast<int>(bits / group_bits)};
  if (w.scales.shape() != groups) {
    refuse(op, "expected scales of shape ", groups, ", got ", w.scales.shape());
  }
  if (!format.affine()) {
    if (w.scales.dtype() != mx::uint8 || w.biases) {
      refuse(
          op,
          "expected uint8 scales and no biases for ",
          format.name(),
          ", got ",
          w.scales.dtype());
    }
    return;
  }
  require_kernel_dtype(op, w.scales.dtype());
  if (!w.biases || w.biases->shape() != groups || w.biases->dtype() != w.scales.dtype()) {
    refuse(op, "expected biases of the scales' shape and type, got others");
  }
}

} // namespace mlx_primitives
