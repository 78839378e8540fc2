#include "ops/activation.h"

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"
#include "plan/activation.h"

namespace mlx_primitives {

void Activation::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& out = outputs[0];
  for (auto& input : inputs) {
    require_row_contiguous("activation", input);
  }
  donate_one_or_allocate(inputs, out);
  if (out.size() == 0) {
    return;
  }
  auto dtype = mx::type_to_name(out);
  auto fitted = pipeline(stream(), "activation", [&](uint32_t max_threads) {
    return plan_activation(kind_, out.size(), dtype, max_threads);
  });
  ActivationParams params{out.size()};
  if (inputs.size() == 1) {
    encode(stream(), fitted, {inputs[0]}, {out}, params);
  } else {
    encode(stream(), fitted, {inputs[0], inputs[1]}, {out}, params);
  }
}

void Affine::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& x = inputs[0];
  auto& out = outputs[0];
  for (auto& input : inputs) {
    require_row_contiguous("affine", input);
  }
  donate_or_allocate(x, out);
  if (out.size() == 0) {
    return;
  }
  uint32_t columns = x.ndim() > 0 ? x.shape(-1) : 1;
  uint64_t rows = x.size() / columns;
  auto dtype = mx::type_to_name(x);
  auto fitted = pipeline(stream(), "activation", [&](uint32_t max_threads) {
    return plan_affine(rows, columns, dtype, max_threads);
  });
  AffineParams params{
      static_cast<uint32_t>(rows),
      columns,
      static_cast<uint32_t>(inputs[1].size()),
      static_cast<uint32_t>(inputs[2].size())};
  encode(stream(), fitted, {x, inputs[1], inputs[2]}, {out}, params);
}

} // namespace mlx_primitives
