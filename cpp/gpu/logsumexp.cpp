#include "ops/logsumexp.h"

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"
#include "plan/logsumexp.h"

namespace mlx_primitives {

namespace {

void run(mx::Stream stream, const mx::array& x, mx::array& out, bool subtract) {
  if (out.size() == 0) {
    return;
  }
  uint32_t axis = x.shape(-1);
  uint64_t rows = x.size() / axis;
  auto dtype = mx::type_to_name(x);
  auto fitted = pipeline(stream, "logsumexp", [&](uint32_t max_threads) {
    return plan_logsumexp(rows, axis, dtype, subtract, max_threads);
  });
  encode(stream, fitted, {x}, {out}, LogSumExpParams{static_cast<uint32_t>(rows), axis});
}

} // namespace

void LogSumExp::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  require_row_contiguous("logsumexp", inputs[0]);
  allocate(outputs[0]);
  run(stream(), inputs[0], outputs[0], false);
}

void LogSoftmax::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  require_row_contiguous("log_softmax", inputs[0]);
  donate_or_allocate(inputs[0], outputs[0]);
  run(stream(), inputs[0], outputs[0], true);
}

} // namespace mlx_primitives
