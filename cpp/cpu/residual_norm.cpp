#include "ops/residual_norm.h"

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/residual_norm.rs.h"

namespace mlx_primitives {

void ResidualNorm::run_on_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto& x = inputs[0];
  for (const auto& input : inputs) {
    require_row_contiguous("residual_norm", input);
  }
  for (auto& out : outputs) {
    allocate(out);
  }
  cpu_dispatch(stream(), x, [&] {
    size_t axis = x.shape(-1);
    bridge::ResidualNormCall call{
        .dtype = kernel_dtype(x),
        .rows = x.size() / axis,
        .axis = axis,
        .eps = eps_,
        .centered = centered_};
    return [call,
            in = bytes(x),
            residual = bytes(inputs[1]),
            weight = weighted_ ? bytes(inputs[2]) : nullptr,
            bias = biased_ ? bytes(inputs[2 + weighted_]) : nullptr,
            sum = bytes(outputs[0]),
            norm = bytes(outputs[1])] {
      bridge::residual_norm_cpu(call, in, residual, weight, bias, sum, norm);
    };
  });
}

} // namespace mlx_primitives
