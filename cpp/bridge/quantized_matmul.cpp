#include "bridge/quantized_matmul.h"

#include "mlx-primitives/src/ffi/quantized_matmul.rs.h"
#include "ops/quantized_matmul.h"

namespace mlx_primitives::bridge {

namespace {
QuantizedFormat format_of(const QuantizedLayout& layout) {
  return {layout.group_size, layout.bits, layout.mxfp4};
}

/** The arrays of each weight, one after the other: packed, scales and, unless mxfp4, biases. */
std::vector<QuantizedWeight> weights_of(const ArrayList& arrays, const QuantizedLayout& layout) {
  std::vector<QuantizedWeight> weights;
  for (size_t i = 0; i + 1 < arrays.size(); i += layout.mxfp4 ? 2 : 3) {
    auto biases = layout.mxfp4 ? std::nullopt : std::optional(arrays.at(i + 2));
    weights.push_back({arrays[i], arrays[i + 1], biases});
  }
  return weights;
}
} // namespace

void check_quantized(const ArrayList& weight, const QuantizedLayout& layout) {
  require_quantized("quantized_weight", weights_of(weight, layout).at(0), format_of(layout));
}

Handle quantized_matmul(
    const MlxArray& x,
    const ArrayList& weights,
    const QuantizedLayout& layout,
    const QuantizedSteps& steps,
    const MlxArray* norm,
    const MlxArray* bias,
    const MlxArray* residual) {
  QuantizedExtras extras{
      optional(norm), steps.eps, optional(bias), optional(residual), steps.swiglu};
  auto list = weights_of(weights, layout);
  return handle(mlx_primitives::quantized_matmul(x, list, format_of(layout), extras, here()));
}

ListHandle pack_matrix(const MlxArray& w, const QuantizedLayout& layout) {
  auto format = format_of(layout);
  require_format("quantized_weight", format); // MLX divides by both before it looks at them
  auto [group, bits, mxfp4] = format;
  return handle(mx::quantize(w, group, bits, format.mode(), std::nullopt, here()));
}

Handle unpack_matrix(const ArrayList& weight, const QuantizedLayout& layout, Dtype dtype) {
  auto w = weights_of(weight, layout).at(0);
  auto format = format_of(layout);
  return handle(mx::dequantize(
      w.packed,
      w.scales,
      w.biases,
      format.group_size,
      format.bits,
      format.mode(),
      std::nullopt,
      to_mlx(dtype),
      here()));
}

} // namespace mlx_primitives::bridge
