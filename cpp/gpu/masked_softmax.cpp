#include "ops/masked_softmax.h"

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"
#include "plan/masked_softmax.h"

namespace mlx_primitives {

namespace {

/** The scores' kernel, or the gradient's; the mask may be null. */
void run(
    const char* op,
    mx::Stream stream,
    std::initializer_list<std::reference_wrapper<const mx::array>> scores,
    const mx::array* mask,
    mx::array& out,
    const Masking& masking) {
  if (out.size() == 0) {
    return;
  }
  auto params = masked_softmax_params(out, mask, masking);
  auto fitted = pipeline(stream, op, [&](uint32_t max_threads) {
    uint64_t rows = out.size() / params.keys;
    return plan_masked_softmax(op, rows, params.keys, mx::type_to_name(out), max_threads);
  });
  auto& encoder = mx::metal::get_command_encoder(stream);
  mlx_primitives::bind(encoder, fitted, scores); // not std::bind, by its arguments
  int index = static_cast<int>(scores.size());
  if (mask) {
    // From its lowest element on, where a stride leads backwards.
    int64_t start = params.mask_start * static_cast<int64_t>(mask->itemsize());
    encoder.set_input_array(*mask, index++, -start);
  } else {
    encoder.set_input_array(scores.begin()->get(), index++); // something has to be bound
  }
  encoder.set_output_array(out, index++);
  encoder.set_bytes(params, index);
  dispatch(encoder, fitted.launch);
}

} // namespace

void MaskedSoftmax::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& x = inputs[0];
  require_row_contiguous("masked_softmax", x);
  donate_or_allocate(x, outputs[0]);
  const auto* mask = inputs.size() > 1 ? &inputs[1] : nullptr;
  run("masked_softmax", stream(), {x}, mask, outputs[0], masking_);
}

void MaskedSoftmaxGrad::eval_gpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& y = inputs[0];
  auto& g = inputs[1];
  require_row_contiguous("masked_softmax_grad", y);
  require_row_contiguous("masked_softmax_grad", g);
  donate_or_allocate(g, outputs[0]);
  const auto* mask = inputs.size() > 2 ? &inputs[2] : nullptr;
  run("masked_softmax_grad", stream(), {y, g}, mask, outputs[0], masking_);
}

} // namespace mlx_primitives
