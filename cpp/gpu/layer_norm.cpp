#include "ops/layer_norm.h"

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"
#include "plan/layer_norm.h"

namespace mlx_primitives {

void LayerNorm::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& x = inputs[0];
  auto& out = outputs[0];
  for (auto& input : inputs) {
    require_row_contiguous("layer_norm", input);
  }
  donate_or_allocate(x, out);
  if (out.size() == 0) {
    return;
  }
  uint32_t axis = x.shape(-1);
  uint64_t rows = x.size() / axis;
  auto dtype = mx::type_to_name(x);
  auto fitted = pipeline(stream(), "layer_norm", [&](uint32_t max_threads) {
    return plan_layer_norm(rows, axis, dtype, max_threads);
  });
  auto& weight = weighted_ ? inputs[1] : x; // something has to be bound
  auto& bias = biased_ ? inputs[1 + weighted_] : x;
  LayerNormParams params{static_cast<uint32_t>(rows), axis, eps_, weighted_, biased_};
  encode(stream(), fitted, {x, weight, bias}, {out}, params);
}

} // namespace mlx_primitives
