#include "ops/lora.h"

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"
#include "ops/linear.h"
#include "plan/lora.h"

namespace mlx_primitives {

void LoraLinear::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& x = inputs[0];
  auto& b = inputs[2];
  auto& out = outputs[0];
  // The base first: it gives `out` its buffer.
  std::vector<mx::array> of_base = {x};
  of_base.insert(of_base.end(), inputs.begin() + 3, inputs.end());
  if (format_) {
    QuantizedMatmul::Kind kind{*format_, 1, false, false, 0, false, false};
    QuantizedMatmul(stream(), kind).eval_gpu(of_base, outputs);
  } else {
    Linear(stream(), {false, false, false, ACTIVATION_NONE}).eval_gpu(of_base, outputs);
  }
  if (out.size() == 0 || b.shape(1) == 0) {
    return;
  }
  auto shape = x.shape();
  shape.back() = b.shape(1);
  std::vector<mx::array> projected = {mx::array(shape, x.dtype(), nullptr, {})};
  Linear(stream(), {false, false, false, ACTIVATION_NONE}).eval_gpu({x, inputs[1]}, projected);
  mx::metal::get_command_encoder(stream()).add_temporary(projected[0]);

  LoraParams params{};
  params.columns = out.shape(-1);
  params.rows = grid_count("lora_linear", "rows", out.size() / params.columns);
  params.rank = b.shape(1);
  params.scale = rounded_scale(x.dtype());
  auto fitted = pipeline(stream(), "lora", [&](uint32_t max_threads) {
    return plan_lora(params, mx::type_to_name(x), max_threads);
  });
  encode(stream(), fitted, {projected[0], b, out}, {out}, params);
}

} // namespace mlx_primitives
