#include "ops/cross_entropy.h"

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/cross_entropy.rs.h"

namespace mlx_primitives {

namespace {

bridge::CrossEntropyCall to_call(const mx::array& x, const CrossEntropyTargets& targets) {
  bridge::CrossEntropyCall call{};
  call.classes = x.shape(-1);
  call.rows = x.size() / call.classes;
  call.smoothing = targets.smoothing;
  call.ignores = targets.ignored.has_value();
  call.ignored = targets.ignored.value_or(0);
  return call;
}

} // namespace

void CrossEntropy::run_on_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto& x = inputs[0];
  for (const auto& input : inputs) {
    require_row_contiguous("cross_entropy", input);
  }
  for (auto& output : outputs) {
    allocate(output);
  }
  cpu_dispatch(stream(), outputs[0], [&] {
    return [dtype = kernel_dtype(x),
            in = bytes(x),
            targets = inputs[1].data<int32_t>(),
            loss = bytes(outputs[0]),
            kept = outputs[1].data<float>(),
            call = to_call(x, targets_)] {
      bridge::cross_entropy_cpu(dtype, in, targets, loss, kept, call);
    };
  });
}

void CrossEntropyGrad::run_on_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto& x = inputs[0];
  auto& out = outputs[0];
  for (const auto& input : inputs) {
    require_row_contiguous("cross_entropy", input);
  }
  donate_or_allocate(x, out);
  cpu_dispatch(stream(), out, [&] {
    return [dtype = kernel_dtype(x),
            in = bytes(x),
            targets = inputs[1].data<int32_t>(),
            g = bytes(inputs[2]),
            kept = inputs[3].data<float>(),
            to = bytes(out),
            call = to_call(x, targets_)] {
      bridge::cross_entropy_grad_cpu(dtype, in, targets, g, kept, to, call);
    };
  });
}

} // namespace mlx_primitives
