#include "ops/linear.h"

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"

namespace mlx_primitives {

void Linear::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& x = inputs[0];
  auto& w = inputs[1];
  auto& out = outputs[0];
  prepare(inputs, out);
  if (out.size() == 0) {
    return;
  }
  auto extents = shape(inputs);
  auto dtype = mx::type_to_name(x);
  auto fitted = pipeline(stream(), "linear", [&](uint32_t max_threads) {
    return plan_linear(extents, dtype, x.itemsize(), max_threads);
  });
  LinearParams params{};
  params.m = static_cast<uint32_t>(extents.m);
  params.n = static_cast<uint32_t>(extents.n);
  params.k = static_cast<uint32_t>(extents.k);
  params.w_batched = w.ndim() > 2;
  params.biased = state_.biased;
  params.residual = state_.residual;
  params.activation = state_.activation;
  auto* added = bias(inputs);
  auto* last = residual(inputs);
  // Something has to be bound.
  encode(stream(), fitted, {x, w, added ? *added : x, last ? *last : x}, {out}, params);
}

} // namespace mlx_primitives
