#include "ops/activation.h"

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/activation.rs.h"

namespace mlx_primitives {

void Activation::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& out = outputs[0];
  for (const auto& input : inputs) {
    require_row_contiguous("activation", input);
  }
  donate_one_or_allocate(inputs, out);
  cpu_dispatch(stream(), out, [&] {
    return [dtype = kernel_dtype(out),
            kind = static_cast<bridge::ActivationKind>(kind_),
            a = bytes(inputs[0]),
            b = bytes(inputs.back()),
            to = bytes(out),
            size = out.size()] { bridge::activation_cpu(dtype, kind, a, b, to, size); };
  });
}

void Affine::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto& x = inputs[0];
  auto& out = outputs[0];
  for (const auto& input : inputs) {
    require_row_contiguous("affine", input);
  }
  donate_or_allocate(x, out);
  cpu_dispatch(stream(), out, [&] {
    size_t columns = x.ndim() > 0 ? x.shape(-1) : 1;
    return [call =
                bridge::AffineCall{
                    .rows = x.size() / columns,
                    .columns = columns,
                    .scale_columns = inputs[1].size(),
                    .shift_columns = inputs[2].size()},
            dtype = kernel_dtype(x),
            in = bytes(x),
            scale = bytes(inputs[1]),
            shift = bytes(inputs[2]),
            to = bytes(out)] { bridge::affine_cpu(dtype, in, scale, shift, to, call); };
  });
}

} // namespace mlx_primitives
