#include "ops/softmax.h"

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/softmax.rs.h"

namespace mlx_primitives {

void Softmax::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto& x = inputs[0];
  auto& out = outputs[0];
  require_row_contiguous("softmax", x);
  donate_or_allocate(x, out);
  size_t axis = x.shape(-1);
  cpu_dispatch(stream(), out, [&] {
    return [dtype = kernel_dtype(x), in = bytes(x), to = bytes(out), rows = x.size() / axis, axis] {
      bridge::softmax_cpu(dtype, in, to, rows, axis);
    };
  });
}

} // namespace mlx_primitives
