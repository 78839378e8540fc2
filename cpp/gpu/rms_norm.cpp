#include "ops/rms_norm.h"

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"
#include "plan/rms_norm.h"

namespace mlx_primitives {

void RmsNorm::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& x = inputs[0];
  auto& out = outputs[0];
  for (auto& input : inputs) {
    require_row_contiguous("rms_norm", input);
  }
  donate_or_allocate(x, out);
  if (out.size() == 0) {
    return;
  }
  uint32_t axis = x.shape(-1);
  uint64_t rows = x.size() / axis;
  bool weighted = inputs.size() > 1;
  auto dtype = mx::type_to_name(x);
  auto fitted = pipeline(stream(), "rms_norm", [&](uint32_t max_threads) {
    return plan_rms_norm(rows, axis, dtype, weighted, max_threads);
  });
  auto& weight = weighted ? inputs[1] : x; // something has to be bound
  RmsNormParams params{static_cast<uint32_t>(rows), axis, eps_};
  encode(stream(), fitted, {x, weight}, {out}, params);
}

} // namespace mlx_primitives
