#include "ops/layer_norm.h"

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/layer_norm.rs.h"

namespace mlx_primitives {

void LayerNorm::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto& x = inputs[0];
  auto& out = outputs[0];
  for (const auto& input : inputs) {
    require_row_contiguous("layer_norm", input);
  }
  donate_or_allocate(x, out);
  cpu_dispatch(stream(), out, [&] {
    size_t axis = x.shape(-1);
    bridge::LayerNormCall call{.rows = x.size() / axis, .axis = axis, .eps = eps_};
    return [dtype = kernel_dtype(x),
            call,
            in = bytes(x),
            weight = weighted_ ? bytes(inputs[1]) : nullptr,
            bias = biased_ ? bytes(inputs[1 + weighted_]) : nullptr,
            to = bytes(out)] { bridge::layer_norm_cpu(dtype, call, in, weight, bias, to); };
  });
}

} // namespace mlx_primitives
