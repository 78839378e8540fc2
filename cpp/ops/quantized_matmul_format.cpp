#include "ops/quantized_matmul.h"

namespace mlx_primitives {

namespace {
/**
 * The modes in the order of the enum. Each has a fixed group size and number of bits, or 0 if they
 * vary.
 */
constexpr struct {
  const char* name;
  int group_size, bits;
} MODES[] = {
    {"affine", 0, 0}, {"mxfp4", 32, 4}, {"mxfp8", 32, 8}, {"nvfp4", 16, 4}, {"k_quant", 0, 0}};

/** The number of weights in a block of the K-quant formats, and the bytes of the block's scales. */
constexpr int BLOCK = 256;
constexpr int SCALE_BYTES = 20;

/** Unpacks K-quant weights to float32, which represents their scales and biases exactly. */
mx::array of_blocks(const QuantizedWeight& weight, int bits, mx::Stream s) {
  auto shape = weight.scales.shape();
  int blocks = shape.back() / SCALE_BYTES;
  shape.back() = blocks;
  shape.push_back(SCALE_BYTES);
  auto scales = mx::reshape(weight.scales, shape, s);
  auto part = [&](int from, int to) {
    mx::Shape start(shape.size(), 0);
    auto stop = shape;
    start.back() = from;
    stop.back() = to;
    return mx::contiguous(mx::slice(scales, start, stop, s), false, s);
  };
  auto step = [&](int at) {
    return mx::astype(mx::view(part(at, at + 2), mx::float16, s), mx::float32, s);
  };
  auto integers = [&](int from, int to) { return mx::astype(part(from, to), mx::float32, s); };
  auto groups = weight.scales.shape();
  auto affine = [&](const mx::array& scales, const mx::array& biases) {
    return mx::dequantize(
        weight.packed, scales, biases, 32, bits, "affine", std::nullopt, mx::float32, s);
  };
  groups.back() = blocks * (BLOCK / 32);
  if (bits < 6) {
    auto of_groups = [&](const mx::array& step, const mx::array& factors) {
      return mx::reshape(mx::multiply(step, factors, s), groups, s);
    };
    return affine(of_groups(step(0), integers(4, 12)), of_groups(step(2), integers(12, 20)));
  }
  auto codes =
      affine(mx::full(groups, 1.0f, mx::float32, s), mx::full(groups, -32.0f, mx::float32, s));
  auto of_groups = mx::subtract(integers(4, 20), mx::array(128.0f), s);
  of_groups = mx::expand_dims(mx::multiply(of_groups, step(0), s), -1, s);
  auto each = of_groups.shape();
  each.back() = BLOCK / 16;
  return mx::reshape(mx::multiply(mx::reshape(codes, each, s), of_groups, s), codes.shape(), s);
}
} // namespace

const char* QuantizedFormat::name() const {
  return MODES[static_cast<size_t>(mode)].name;
}

std::string QuantizedFormat::kernel_name() const {
  switch (mode) {
    case QuantizedMode::Affine:
      return "b" + std::to_string(bits);
    case QuantizedMode::KQuant:
      return "k" + std::to_string(bits);
    default:
      return name();
  }
}

mx::array unpacked(
    const QuantizedWeight& weight, const QuantizedFormat& format, mx::Dtype dtype, mx::Stream s) {
  auto& [packed, scales, biases] = weight;
  auto& [group, bits, mode] = format;
  if (mode == QuantizedMode::KQuant) {
    return mx::astype(of_blocks(weight, bits, s), dtype, s);
  }
  return mx::dequantize(packed, scales, biases, group, bits, format.name(), std::nullopt, dtype, s);
}

bool unpacks_first(const QuantizedFormat& format, mx::Dtype dtype, mx::Stream s) {
  return format.mode == QuantizedMode::KQuant && dtype != mx::float32 &&
         (s.device != mx::Device::cpu || simulating());
}

void require_gpu_kernel(
    const char* op, const QuantizedFormat& format, mx::Dtype dtype, const mx::array& scales) {
  if (format.mode != QuantizedMode::KQuant) {
    return;
  }
  if (dtype != mx::float32) {
    refuse(
        op,
        "only CPUs have a kernel for k_quant and ",
        dtype,
        ": build the product where a GPU evaluates it");
  }
  if (scales.offset() % 4 != 0) {
    refuse(op, "expected scales of k_quant from a multiple of 4 bytes on, got ", scales.offset());
  }
}

mx::array mlx_product(
    const mx::array& x,
    const QuantizedWeight& weight,
    const QuantizedFormat& format,
    mx::Stream s,
    bool transposed) {
  auto of = [&](const mx::array& rows) {
    auto& [packed, scales, biases] = weight;
    auto& [group, bits, mode] = format;
    if (mode == QuantizedMode::KQuant) {
      auto w = unpacked(weight, format, x.dtype(), s);
      return mx::matmul(rows, transposed ? mx::swapaxes(w, 0, 1, s) : w, s);
    }
    return mx::quantized_matmul(
        rows, packed, scales, biases, transposed, group, bits, format.name(), s);
  };
  // MLX's kernels for NVIDIA GPUs read the number of rows. A vector has no axis of rows, so add
  // one.
  return x.ndim() == 1 ? mx::squeeze(of(mx::expand_dims(x, 0, s)), 0, s) : of(x);
}

void require_format(const char* op, const QuantizedFormat& format) {
  auto [group, bits, mode] = format;
  if (mode == QuantizedMode::KQuant) {
    if (bits < 4 || bits > 6 || group != (bits == 6 ? 16 : 32)) {
      refuse(
          op,
          "expected groups of 32 and 4 or 5 bits for k_quant, or groups of 16 and 6 bits, got ",
          group,
          " and ",
          bits);
    }
    return;
  }
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
  if (format.mode == QuantizedMode::KQuant) {
    auto axis = bits / format.bits;
    if (axis % BLOCK != 0) {
      refuse(op, "expected rows of a multiple of ", +BLOCK, " weights, got ", axis);
    }
    groups[1] = static_cast<int>(axis / BLOCK * SCALE_BYTES);
  }
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
