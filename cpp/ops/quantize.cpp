#include "ops/quantize.h"

#include <algorithm>

#include "../../metal/quantize.h"
#include "ops/reduce.h"
#include "runtime/kernels.h"

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

/** The index of the input of Dequantize that names the rows to take. */
constexpr size_t ROWS = 3;

/** The shape with a different last dimension. */
mx::Shape with_last(mx::Shape shape, int64_t last) {
  shape.back() = static_cast<mx::ShapeElem>(last);
  return shape;
}

/** Checks codes, scales and biases for an op. */
void check_packed(
    const char* op,
    const mx::array& packed,
    const mx::array& scales,
    const mx::array& biases,
    int group_size,
    int bits) {
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
}

} // namespace

Arrays quantize(const mx::array& x, int group_size, int bits, mx::StreamOrDevice s_) {
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
  check_packed("dequantize", packed, scales, biases, group_size, bits);
  auto s = mx::to_stream(s_);
  return mx::array(
      with_last(scales.shape(), int64_t{scales.shape(-1)} * group_size),
      scales.dtype(),
      std::make_shared<Dequantize>(s, group_size, bits),
      {row_contiguous(packed, s), row_contiguous(scales, s), row_contiguous(biases, s)});
}

mx::array dequantize_rows(
    const mx::array& packed,
    const mx::array& scales,
    const mx::array& biases,
    const mx::array& ids,
    int group_size,
    int bits,
    mx::StreamOrDevice s_) {
  constexpr auto op = "dequantize_rows";
  check_packed(op, packed, scales, biases, group_size, bits);
  if (scales.ndim() != 2) {
    refuse(op, "expected a matrix, got scales ", scales.shape());
  }
  if (ids.dtype() != mx::uint32) {
    refuse(op, "expected ids in uint32, got ", ids.dtype());
  }
  if (scales.shape(0) == 0) {
    refuse(op, "expected a matrix with rows, got scales ", scales.shape());
  }
  auto s = mx::to_stream(s_);
  auto shape = ids.shape();
  shape.push_back(0);
  return mx::array(
      with_last(std::move(shape), int64_t{scales.shape(1)} * group_size),
      scales.dtype(),
      std::make_shared<Dequantize>(s, group_size, bits),
      {row_contiguous(packed, s),
       row_contiguous(scales, s),
       row_contiguous(biases, s),
       row_contiguous(ids, s)});
}

Arrays Quantize::compose(const Arrays& inputs) {
  return mx::quantize(inputs[0], group_size_, bits_, "affine", std::nullopt, stream());
}

std::pair<Arrays, std::vector<int>> Quantize::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  auto x = batch_first(inputs[0], axes[0], batch_size(inputs, axes), stream());
  return {quantize(x, group_size_, bits_, stream()), {0, 0, 0}};
}

bool Quantize::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const Quantize&>(other);
  return group_size_ == o.group_size_ && bits_ == o.bits_;
}

std::vector<mx::Shape> Quantize::output_shapes(const Arrays& inputs) {
  auto& x = inputs[0];
  int64_t groups = x.shape(-1) / group_size_;
  return {
      with_last(x.shape(), groups * (group_size_ / 32) * bits_),
      with_last(x.shape(), groups),
      with_last(x.shape(), groups)};
}

Arrays Dequantize::compose(const Arrays& inputs) {
  auto s = stream();
  auto part = [&](int i) {
    if (inputs.size() <= ROWS) {
      return inputs[i];
    }
    auto last = mx::array(static_cast<uint32_t>(inputs[i].shape(0) - 1)); // MLX checks no index
    return mx::take(inputs[i], mx::minimum(inputs[ROWS], last, s), 0, s);
  };
  return {mx::dequantize(
      part(0), part(1), part(2), group_size_, bits_, "affine", std::nullopt, std::nullopt, s)};
}

/**
 * The gradient of biases is each group's sum of the cotangent. For scales, the cotangent is
 * multiplied by the codes first.
 */
Arrays Dequantize::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  auto& scales = primals[1];
  bool of_codes = std::find(argnums.begin(), argnums.end(), 0) != argnums.end();
  if (primals.size() > ROWS || of_codes || cotangents[0].size() == 0) {
    return ComposedPrimitive::vjp(primals, cotangents, argnums, outputs);
  }
  auto s = stream();
  auto g = row_contiguous(cotangents[0], s);
  Arrays result;
  for (int argnum : argnums) {
    auto terms = g;
    if (argnum == 1) {
      auto ones = mx::ones_like(scales, s);
      auto zeros = mx::zeros_like(scales, s);
      terms = mx::multiply(g, dequantize(primals[0], ones, zeros, group_size_, bits_, s), s);
    }
    auto groups = mx::unflatten(terms, -1, {scales.shape(-1), group_size_}, s);
    result.push_back(reduce(groups, ReductionKind::Sum, false, false, s));
  }
  return result;
}

std::pair<Arrays, std::vector<int>> Dequantize::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  int size = batch_size(inputs, axes);
  auto s = stream();
  auto first = [&](int i) { return batch_first(inputs[i], axes[i], size, s); };
  if (inputs.size() > ROWS) {
    if (axes[0] >= 0 || axes[1] >= 0 || axes[2] >= 0) {
      return ComposedPrimitive::vmap(inputs, axes);
    }
    auto [packed, scales, biases] = std::tie(inputs[0], inputs[1], inputs[2]);
    return {{dequantize_rows(packed, scales, biases, first(ROWS), group_size_, bits_, s)}, {0}};
  }
  return {{dequantize(first(0), first(1), first(2), group_size_, bits_, s)}, {0}};
}

bool Dequantize::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const Dequantize&>(other);
  return group_size_ == o.group_size_ && bits_ == o.bits_;
}

std::vector<mx::Shape> Dequantize::output_shapes(const Arrays& inputs) {
  auto& scales = inputs[1];
  auto shape = scales.shape();
  if (inputs.size() > ROWS) {
    shape = inputs[ROWS].shape();
    shape.push_back(0);
  }
  return {with_last(std::move(shape), int64_t{scales.shape(-1)} * group_size_)};
}

namespace {

constexpr uint32_t QUANTIZE_GROUP = 256; // threads; whole SIMD groups

/** Runs the kernel `form` for the groups of `of`, which is x or the dequantized result. */
Dispatch dispatch(
    const char* form,
    const mx::array& of,
    int group_size,
    int bits,
    const Arrays& inputs,
    const Arrays& outputs,
    uint32_t max_threads) {
  uint32_t width = whole_simds("quantize", std::min(max_threads, QUANTIZE_GROUP));
  uint64_t groups = of.size() / group_size;
  QuantizeParams params{};
  params.threads = group_size / CODES;
  uint32_t threads = grid_count("quantize", "threads", groups * params.threads);
  params.groups = static_cast<uint32_t>(groups);
  auto count = static_cast<uint32_t>(ceil_div(threads, width));
  grid_count("quantize", "threads", uint64_t{count} * width);
  if (inputs.size() > ROWS) {
    params.rows = static_cast<uint32_t>(inputs[1].shape(0));
    params.columns = static_cast<uint32_t>(inputs[1].shape(1));
    grid_count("quantize", "codes of eight", uint64_t{inputs[1].size()} * params.threads);
  }
  std::string kernel = std::string(form) + std::to_string(bits) + type_suffix(of);
  return {"quantize", {kernel, {count, 1, 1}, {width, 1, 1}}, inputs, outputs, params};
}

/** The number and the size of the groups of a float array, for the CPU kernel. */
cpu::QuantizeShape extents(const mx::array& floats, int group_size, int bits) {
  auto size = static_cast<size_t>(group_size);
  return {floats.size() / size, size, static_cast<size_t>(bits)};
}

} // namespace

std::vector<Dispatch> Quantize::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  return {dispatch("mlxp_quantize_", inputs[0], group_size_, bits_, inputs, outputs, max_threads)};
}

CpuCall Quantize::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& x = inputs[0];
  return [element = element_of(x),
          in = bytes(x),
          packed = outputs[0].data<uint32_t>(),
          scales = bytes(outputs[1]),
          biases = bytes(outputs[2]),
          shape = extents(x, group_size_, bits_)] {
    cpu::mlxp_cpu_quantize(element, in, packed, scales, biases, shape);
  };
}

std::vector<Dispatch> Dequantize::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto form = inputs.size() > ROWS ? "mlxp_quantize_rows_" : "mlxp_quantize_back_";
  return {dispatch(form, outputs[0], group_size_, bits_, inputs, outputs, max_threads)};
}

CpuCall Dequantize::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& out = outputs[0];
  auto& packing = inputs[1];
  cpu::TakenRows taken{
      inputs.size() > ROWS ? inputs[ROWS].data<uint32_t>() : nullptr,
      static_cast<size_t>(packing.shape(0)),
      static_cast<size_t>(packing.shape(-1))};
  return [element = element_of(out),
          packed = inputs[0].data<uint32_t>(),
          scales = bytes(packing),
          biases = bytes(inputs[2]),
          taken,
          to = bytes(out),
          shape = extents(out, group_size_, bits_)] {
    if (taken.ids) {
      cpu::mlxp_cpu_dequantize_rows(element, packed, scales, biases, taken, to, shape);
    } else {
      cpu::mlxp_cpu_dequantize(element, packed, scales, biases, to, shape);
    }
  };
}

} // namespace mlx_primitives
