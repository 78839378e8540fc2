#include "ops/cross_entropy.h"

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"
#include "plan/cross_entropy.h"

namespace mlx_primitives {

void CrossEntropy::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& x = inputs[0];
  auto& targets = inputs[1];
  for (auto& input : inputs) {
    require_row_contiguous("cross_entropy", input);
  }
  for (auto& output : outputs) {
    allocate(output);
  }
  if (x.size() == 0) {
    return;
  }
  uint32_t classes = x.shape(-1);
  uint64_t rows = x.size() / classes;
  auto dtype = mx::type_to_name(x);
  auto fitted = pipeline(stream(), "cross_entropy", [&](uint32_t max_threads) {
    return plan_cross_entropy(rows, classes, dtype, max_threads);
  });
  auto params = targets_.params(static_cast<uint32_t>(rows), classes);
  encode(stream(), fitted, {x, targets}, {outputs[0], outputs[1]}, params);
}

void CrossEntropyGrad::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& x = inputs[0];
  auto& targets = inputs[1];
  auto& g = inputs[2];
  auto& kept = inputs[3];
  auto& out = outputs[0];
  for (auto& input : inputs) {
    require_row_contiguous("cross_entropy", input);
  }
  donate_or_allocate(x, out);
  if (out.size() == 0) {
    return;
  }
  uint32_t classes = x.shape(-1);
  uint64_t rows = x.size() / classes;
  auto dtype = mx::type_to_name(x);
  auto fitted = pipeline(stream(), "cross_entropy", [&](uint32_t max_threads) {
    return plan_cross_entropy_grad(rows, classes, dtype, max_threads);
  });
  auto params = targets_.params(static_cast<uint32_t>(rows), classes);
  encode(stream(), fitted, {x, targets, kept, g}, {out}, params);
}

} // namespace mlx_primitives
