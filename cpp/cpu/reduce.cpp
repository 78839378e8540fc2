#include "ops/reduce.h"

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/reduce.rs.h"

namespace mlx_primitives {

void Reduction::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto& x = inputs[0];
  auto& out = outputs[0];
  require_row_contiguous("reduce", x);
  allocate(out);
  cpu_dispatch(stream(), out, [&] {
    return [dtype = kernel_dtype(x),
            kind = kind_,
            in = bytes(x),
            to = bytes(out),
            rows = out.size(),
            axis = x.size() / out.size()] { bridge::reduce_cpu(dtype, kind, in, to, rows, axis); };
  });
}

} // namespace mlx_primitives
