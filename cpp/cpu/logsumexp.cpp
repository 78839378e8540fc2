#include "ops/logsumexp.h"

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/logsumexp.rs.h"

namespace mlx_primitives {

namespace {

void run(mx::Stream stream, const mx::array& x, mx::array& out, bool subtract) {
  size_t axis = x.shape(-1);
  cpu_dispatch(stream, out, [&] {
    size_t rows = x.size() / axis;
    return [dtype = kernel_dtype(x), in = bytes(x), to = bytes(out), rows, axis, subtract] {
      bridge::logsumexp_cpu(dtype, in, to, rows, axis, subtract);
    };
  });
}

} // namespace

void LogSumExp::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  require_row_contiguous("logsumexp", inputs[0]);
  allocate(outputs[0]);
  run(stream(), inputs[0], outputs[0], false);
}

void LogSoftmax::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  require_row_contiguous("log_softmax", inputs[0]);
  donate_or_allocate(inputs[0], outputs[0]);
  run(stream(), inputs[0], outputs[0], true);
}

} // namespace mlx_primitives
