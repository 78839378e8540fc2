#include "ops/rms_norm.h"

#include "gpu/launch.h"
#include "mlx/allocator.h"
#include "mlx/backend/metal/utils.h"
#include "plan/rms_norm.h"

namespace mlx_primitives {

void RmsNorm::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& x = inputs[0];
  auto& out = outputs[0];
  if (out.size() == 0) {
    out.set_data(mx::allocator::malloc(0));
    return;
  }
  bool weighted = inputs.size() > 1;
  auto& weight = weighted ? inputs[1] : x;  // something has to be bound
  require_row_contiguous("rms_norm", "x", x);
  require_row_contiguous("rms_norm", "weight", weight);

  uint32_t axis = x.shape(-1);
  uint64_t rows = x.size() / axis;
  auto dtype = mx::type_to_name(x);
  auto fitted = pipeline(stream(), [&](uint32_t max_threads) {
    return plan_rms_norm(rows, axis, dtype, weighted, max_threads);
  });
  take_buffer(x, out);
  RmsNormParams params{static_cast<uint32_t>(rows), axis, eps_};
  encode(stream(), fitted, {x, weight}, out, params);
}

}  // namespace mlx_primitives
