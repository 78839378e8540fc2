#include "ops/linear.h"

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/linear.rs.h"

namespace mlx_primitives {

void Linear::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto& x = inputs[0];
  const auto& w = inputs[1];
  auto& out = outputs[0];
  prepare(inputs, out);
  cpu_dispatch(stream(), out, [&] {
    auto extents = shape(inputs);
    auto* added = bias(inputs);
    auto* last = residual(inputs);
    return
        [call =
             bridge::LinearCall{
                 .batch = extents.batch,
                 .m = extents.m,
                 .n = extents.n,
                 .k = extents.k,
                 .columns = extents.columns,
                 .w_batched = w.ndim() > 2,
                 .activation = static_cast<bridge::ActivationKind>(state_.activation)},
         dtype = kernel_dtype(x),
         in = bytes(x),
         weights = bytes(w),
         biases = added ? bytes(*added) : nullptr,
         residuals = last ? bytes(*last) : nullptr,
         to = bytes(out)] { bridge::linear_cpu(dtype, in, weights, biases, residuals, to, call); };
  });
}

} // namespace mlx_primitives
