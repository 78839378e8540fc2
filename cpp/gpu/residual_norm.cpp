#include "ops/residual_norm.h"

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"
#include "plan/residual_norm.h"

namespace mlx_primitives {

void ResidualNorm::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& x = inputs[0];
  for (auto& input : inputs) {
    require_row_contiguous("residual_norm", input);
  }
  for (auto& out : outputs) {
    allocate(out);
  }
  if (x.size() == 0) {
    return;
  }
  uint32_t axis = x.shape(-1);
  uint64_t rows = x.size() / axis;
  auto dtype = mx::type_to_name(x);
  auto fitted = pipeline(stream(), "residual_norm", [&](uint32_t max_threads) {
    return plan_residual_norm(rows, axis, dtype, centered_, max_threads);
  });
  auto& weight = weighted_ ? inputs[2] : x; // something has to be bound
  auto& bias = biased_ ? inputs[2 + weighted_] : x;
  ResidualNormParams params{static_cast<uint32_t>(rows), axis, eps_, weighted_, biased_};
  encode(stream(), fitted, {x, inputs[1], weight, bias}, {outputs[0], outputs[1]}, params);
}

} // namespace mlx_primitives
