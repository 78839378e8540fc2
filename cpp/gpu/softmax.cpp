#include "ops/softmax.h"

#include "gpu/launch.h"
#include "mlx/allocator.h"
#include "mlx/backend/metal/utils.h"
#include "plan/softmax.h"

namespace mlx_primitives {

void Softmax::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& x = inputs[0];
  auto& out = outputs[0];
  if (out.size() == 0) {
    out.set_data(mx::allocator::malloc(0));
    return;
  }
  require_row_contiguous("softmax", "x", x);

  uint32_t axis = x.shape(-1);
  uint64_t rows = x.size() / axis;
  auto dtype = mx::type_to_name(x);
  auto fitted = pipeline(
      stream(), [&](uint32_t max_threads) { return plan_softmax(rows, axis, dtype, max_threads); });
  take_buffer(x, out);
  encode(stream(), fitted, {x}, out, SoftmaxParams{static_cast<uint32_t>(rows), axis});
}

}  // namespace mlx_primitives
