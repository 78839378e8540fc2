#include "ops/quantized_matmul.h"

#include <bit>

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"
#include "plan/quantized_matmul.h"
#include "plan/rms_norm.h"

namespace mlx_primitives {

namespace {
/** x normalised, by the kernel of rms_norm, into a temporary. */
mx::array normalized(
    const mx::array& x, const mx::array& weight, float eps, const mx::Stream& stream) {
  mx::array out(x.shape(), x.dtype(), nullptr, {});
  allocate(out);
  mx::metal::get_command_encoder(stream).add_temporary(out);
  uint32_t axis = x.shape(-1);
  uint64_t rows = x.size() / axis;
  auto fitted = pipeline(stream, "rms_norm", [&](uint32_t max_threads) {
    return plan_rms_norm(rows, axis, mx::type_to_name(x), true, max_threads);
  });
  RmsNormParams params{static_cast<uint32_t>(rows), axis, eps};
  encode(stream, fitted, {x, weight}, {out}, params);
  return out;
}
} // namespace

void QuantizedMatmul::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  for (auto& input : inputs) {
    require_row_contiguous("quantized_linear", input);
  }
  auto& out = outputs[0];
  auto more = extras(inputs);
  if (more.residual) {
    donate_or_allocate(inputs.back(), out);
  } else {
    allocate(out);
  }
  if (out.size() == 0) {
    return;
  }
  auto x = inputs[0];
  uint32_t axis = x.shape(-1);
  QuantizedMatmulParams params{};
  params.rows = grid_count("quantized_linear", "rows", x.size() / axis);
  params.axis = axis;
  params.columns = out.shape(-1);
  params.parts = kind_.parts;
  params.group_shift = std::countr_zero(static_cast<unsigned>(kind_.format.group_size));
  params.swiglu = kind_.swiglu;
  params.normed = kind_.normed;
  params.biased = kind_.biased;
  params.added = kind_.added;
  params.eps = kind_.eps;
  std::vector<QuantizedWeight> weights;
  for (int part = 0; part < kind_.parts; ++part) {
    weights.push_back(weight(inputs, part));
    params.part_columns[part] = weights.back().packed.shape(0);
  }
  while (weights.size() < QUANTIZED_PARTS) {
    weights.push_back(weights.front()); // something has to be bound
  }

  auto dtype = mx::type_to_name(x);
  auto format = kind_.format.mxfp4 ? "mxfp4" : "b" + std::to_string(kind_.format.bits);
  uint32_t bytes = static_cast<uint32_t>(x.itemsize());
  auto fitted = pipeline(stream(), "quantized_matmul", [&](uint32_t max_threads) {
    return plan_quantized_matmul(params, format, dtype, bytes, max_threads);
  });
  auto& a = weights[0];
  auto& b = weights[1];
  auto& c = weights[2];
  auto& none = inputs[0];
  auto& of_a = a.biases ? *a.biases : none;
  auto& of_b = b.biases ? *b.biases : none;
  auto& of_c = c.biases ? *c.biases : none;
  auto& bias = more.bias ? *more.bias : none;
  auto& residual = more.residual ? *more.residual : none;
  // Spelled out twice: the list of inputs is made of references.
  if (!fitted.launch.kernel.starts_with("mlxp_quantized_matmul_tile")) {
    auto& norm = more.norm ? *more.norm : none;
    encode(
        stream(),
        fitted,
        {x,
         a.packed,
         a.scales,
         of_a,
         b.packed,
         b.scales,
         of_b,
         c.packed,
         c.scales,
         of_c,
         bias,
         residual,
         norm},
        {out},
        params);
    return;
  }
  if (more.norm) {
    x = normalized(x, *more.norm, kind_.eps, stream());
  }
  encode(
      stream(),
      fitted,
      {x,
       a.packed,
       a.scales,
       of_a,
       b.packed,
       b.scales,
       of_b,
       c.packed,
       c.scales,
       of_c,
       bias,
       residual},
      {out},
      params);
}

} // namespace mlx_primitives
