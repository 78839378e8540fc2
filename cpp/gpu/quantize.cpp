#include "ops/quantize.h"

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"
#include "plan/quantize.h"

namespace mlx_primitives {

void Quantize::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& x = inputs[0];
  require_row_contiguous("quantize", x);
  for (auto& out : outputs) {
    allocate(out);
  }
  if (x.size() == 0) {
    return;
  }
  QuantizeParams params{};
  auto fitted = pipeline(stream(), "quantize", [&](uint32_t max_threads) {
    return plan_quantize(
        params,
        x.size() / group_size_,
        group_size_,
        bits_,
        /* back */ false,
        mx::type_to_name(x),
        max_threads);
  });
  encode(stream(), fitted, {x}, {outputs[0], outputs[1], outputs[2]}, params);
}

void Dequantize::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& out = outputs[0];
  for (auto& input : inputs) {
    require_row_contiguous("dequantize", input);
  }
  allocate(out);
  if (out.size() == 0) {
    return;
  }
  QuantizeParams params{};
  auto fitted = pipeline(stream(), "quantize", [&](uint32_t max_threads) {
    return plan_quantize(
        params,
        out.size() / group_size_,
        group_size_,
        bits_,
        /* back */ true,
        mx::type_to_name(out),
        max_threads);
  });
  encode(stream(), fitted, {inputs[0], inputs[1], inputs[2]}, {out}, params);
}

} // namespace mlx_primitives
