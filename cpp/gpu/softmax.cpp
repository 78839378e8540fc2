#include "ops/softmax.h"

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"
#include "plan/softmax.h"

namespace mlx_primitives {

void Softmax::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& x = inputs[0];
  auto& out = outputs[0];
  require_row_contiguous("softmax", x);
  donate_or_allocate(x, out);
  if (out.size() == 0) {
    return;
  }
  uint32_t axis = x.shape(-1);
  uint64_t rows = x.size() / axis;
  auto dtype = mx::type_to_name(x);
  auto fitted = pipeline(stream(), "softmax", [&](uint32_t max_threads) {
    return plan_softmax(rows, axis, dtype, max_threads);
  });
  encode(stream(), fitted, {x}, {out}, SoftmaxParams{static_cast<uint32_t>(rows), axis});
}

} // namespace mlx_primitives
