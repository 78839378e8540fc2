#include "ops/masked_softmax.h"

#include <algorithm>

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/masked_softmax.rs.h"

namespace mlx_primitives {

namespace {

bridge::MaskedSoftmaxCall to_call(
    const mx::array& x, const mx::array* mask, const Masking& masking) {
  auto params = masked_softmax_params(x, mask, masking);
  bridge::MaskedSoftmaxCall call{};
  call.rows = x.size() / x.shape(-1);
  call.queries = params.queries;
  call.keys = params.keys;
  call.causal = masking.causal;
  call.window = params.window;
  call.scale = params.scale;
  call.additive = params.mask_kind == MASK_ADDITIVE;
  call.mask_dims = params.mask_dims;
  call.mask_key_stride = params.mask_key_stride;
  std::copy_n(params.mask_strides, MASK_DIMS, call.mask_strides.begin());
  std::copy_n(params.mask_shape, MASK_DIMS, call.mask_shape.begin());
  return call;
}

} // namespace

void MaskedSoftmax::run_on_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto& x = inputs[0];
  auto& out = outputs[0];
  require_row_contiguous("masked_softmax", x);
  donate_or_allocate(x, out);
  const auto* mask = inputs.size() > 1 ? &inputs[1] : nullptr;
  cpu_dispatch(stream(), out, [&] {
    return [dtype = kernel_dtype(x),
            in = bytes(x),
            masked = mask ? bytes(*mask) : nullptr,
            to = bytes(out),
            call = to_call(x, mask, masking_)] {
      bridge::masked_softmax_cpu(dtype, in, masked, to, call);
    };
  });
}

void MaskedSoftmaxGrad::run_on_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto& y = inputs[0];
  const auto& g = inputs[1];
  auto& out = outputs[0];
  require_row_contiguous("masked_softmax_grad", y);
  require_row_contiguous("masked_softmax_grad", g);
  donate_or_allocate(g, out);
  const auto* mask = inputs.size() > 2 ? &inputs[2] : nullptr;
  cpu_dispatch(stream(), out, [&] {
    return [dtype = kernel_dtype(y),
            in = bytes(y),
            gradient = bytes(g),
            masked = mask ? bytes(*mask) : nullptr,
            to = bytes(out),
            call = to_call(y, mask, masking_)] {
      bridge::masked_softmax_grad_cpu(dtype, in, gradient, masked, to, call);
    };
  });
}

} // namespace mlx_primitives
