#include "ops/quantized_transposed.h"

#include <bit>

#include "../../metal/quantized_matmul.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {
constexpr auto quantized_transposed_op = "quantized_transposed";
} // namespace

mx::array quantized_transposed(
    const mx::array& x,
    const QuantizedWeight& weight,
    const QuantizedFormat& format,
    const std::optional<mx::array>& residual,
    mx::StreamOrDevice s_) {
  require_quantized(quantized_transposed_op, weight, format);
  if (x.ndim() == 0 || x.shape(-1) != weight.packed.shape(0)) {
    refuse(
        quantized_transposed_op,
        "expected x of a last axis of ",
        weight.packed.shape(0),
        ", got ",
        x.shape());
  }
  auto shape = x.shape();
  shape.back() = static_cast<int>(int64_t{weight.packed.shape(1)} * 32 / format.bits);
  auto dtype = x.dtype();
  require_kernel_dtype(quantized_transposed_op, dtype);
  auto s = mx::to_stream(s_);
  Arrays inputs = {x, weight.packed, weight.scales};
  if (format.affine()) {
    inputs[2] = convert(weight.scales, dtype, s);
    inputs.push_back(convert(*weight.biases, dtype, s));
  }
  if (residual) {
    if (residual->shape() != shape) {
      refuse(
          quantized_transposed_op,
          "expected a residual of shape ",
          shape,
          ", got ",
          residual->shape());
    }
    inputs.push_back(convert(*residual, dtype, s));
  }
  for (auto& input : inputs) {
    input = row_contiguous(input, s);
  }
  auto primitive = std::make_shared<QuantizedTransposed>(s, format, residual.has_value());
  if (unpacks_first(format, dtype, s)) {
    return primitive->compose(inputs)[0];
  }
  return mx::array(std::move(shape), dtype, std::move(primitive), std::move(inputs));
}

Arrays QuantizedTransposed::compose(const Arrays& inputs) {
  auto s = stream();
  auto y = mlx_product(inputs[0], weight(inputs), format_, s, false);
  return {added_ ? mx::add(y, inputs.back(), s) : y};
}

Arrays QuantizedTransposed::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  Arrays gradients;
  for (int argnum : argnums) {
    if (argnum == 0) {
      gradients.push_back(
          quantized_matmul(cotangents[0], {weight(primals)}, format_, {}, stream()));
    } else if (static_cast<size_t>(argnum) == arrays()) {
      gradients.push_back(cotangents[0]); // of the residual
    } else {
      return ComposedPrimitive::vjp(primals, cotangents, argnums, outputs);
    }
  }
  return gradients;
}

std::pair<Arrays, std::vector<int>> QuantizedTransposed::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  for (size_t i = 1; i < arrays(); ++i) {
    if (axes[i] >= 0) {
      return ComposedPrimitive::vmap(inputs, axes);
    }
  }
  int size = batch_size(inputs, axes);
  auto mapped = [&](size_t i) { return batch_first(inputs[i], axes[i], size, stream()); };
  auto residual = added_ ? std::optional(mapped(arrays())) : std::nullopt;
  return {{quantized_transposed(mapped(0), weight(inputs), format_, residual, stream())}, {0}};
}

bool QuantizedTransposed::is_equivalent(const mx::Primitive& other_) const {
  auto& other = static_cast<const QuantizedTransposed&>(other_);
  return format_ == other.format_ && added_ == other.added_;
}

std::vector<mx::Shape> QuantizedTransposed::output_shapes(const Arrays& inputs) {
  auto shape = inputs[0].shape();
  shape.back() = static_cast<int>(int64_t{inputs[1].shape(1)} * 32 / format_.bits);
  return {shape};
}

std::vector<Dispatch> QuantizedTransposed::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto& x = inputs[0];
  require_gpu_kernel(quantized_transposed_op, format_, x.dtype(), inputs[2]);
  auto& out = outputs[0];
  if (max_threads < QUANTIZED_TILE_THREADS) {
    refuse(
        quantized_transposed_op,
        "expected threadgroups of ",
        +QUANTIZED_TILE_THREADS,
        ", got ",
        max_threads);
  }
  QuantizedTransposedParams params{};
  params.axis = out.shape(-1);
  params.columns = x.shape(-1);
  params.rows = grid_count(quantized_transposed_op, "rows", out.size() / params.axis);
  params.group_shift = std::countr_zero(static_cast<unsigned>(format_.group_size));
  params.added = added_;
  Launch launch{
      "mlxp_quantized_transposed_" + format_.kernel_name() + type_suffix(x),
      {static_cast<uint32_t>(ceil_div(params.axis, QUANTIZED_TILE)),
       static_cast<uint32_t>(ceil_div(params.rows, QUANTIZED_TILE)),
       1},
      {QUANTIZED_TILE_THREADS, 1, 1},
      quantized_tile_bytes(QUANTIZED_TILE, static_cast<uint32_t>(x.itemsize()))};
  auto w = weight(inputs);
  auto& residual = added_ ? inputs.back() : x; // a buffer must be bound
  Arrays bound = {x, w.packed, w.scales, w.biases ? *w.biases : x, residual};
  return {{quantized_transposed_op, launch, bound, outputs, params}};
}

CpuCall QuantizedTransposed::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& x = inputs[0];
  auto& out = outputs[0];
  auto w = weight(inputs);
  auto axis = static_cast<size_t>(out.shape(-1));
  cpu::QuantizedTransposedCall call{
      .element = element_of(x),
      .mode = static_cast<cpu::Mode>(format_.mode),
      .bits = static_cast<uint32_t>(format_.bits),
      .group = static_cast<size_t>(format_.group_size),
      .x = bytes(x),
      .rows = out.size() / axis,
      .axis = axis,
      .weights =
          {bytes(w.packed),
           bytes(w.scales),
           w.biases ? bytes(*w.biases) : nullptr,
           static_cast<size_t>(x.shape(-1))},
      .residual = added_ ? bytes(inputs.back()) : nullptr,
      .out = bytes(out)};
  return [call] { cpu::mlxp_cpu_quantized_transposed(call); };
}

} // namespace mlx_primitives
