#include "ops/rope.h"

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/rope.rs.h"

namespace mlx_primitives {

void Rope::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto& x = inputs[0];
  const auto& offset = inputs[1];
  auto& out = outputs[0];
  for (const auto& input : inputs) {
    require_row_contiguous("rope", input);
  }
  donate_or_allocate(x, out);
  cpu_dispatch(stream(), out, [&] {
    size_t batch = x.shape(0);
    size_t seq = x.shape(-2);
    size_t head_dim = x.shape(-1);
    bridge::RopeCall call{
        .batch = batch,
        .heads = x.size() / (batch * seq * head_dim),
        .seq = seq,
        .head_dim = head_dim,
        .dims = static_cast<size_t>(dims_),
        .traditional = traditional_,
        .forward = forward_,
        .base = base_,
        .scale = scale_};
    return
        [dtype = kernel_dtype(x),
         in = bytes(x),
         to = bytes(out),
         call,
         freqs = inputs.size() > 2 ? inputs[2].data<float>() : nullptr,
         offsets = offset.data<int32_t>(),
         count = offset.size()] { bridge::rope_cpu(dtype, in, to, call, freqs, offsets, count); };
  });
}

} // namespace mlx_primitives
