#include "ops/rope_append.h"

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/rope_append.rs.h"

namespace mlx_primitives {

void RopeAppend::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto& state = inputs[0];
  const auto& qkv = inputs[1];
  const auto& offset = inputs[2];
  const auto& slots = inputs[3];
  auto& out = outputs[0];
  for (const auto& input : inputs) {
    require_row_contiguous("rope_append", input);
  }
  donate_or_allocate(state, out);
  cpu_dispatch(stream(), out, [&] {
    bridge::RopeAppendCall call{
        .batch = static_cast<size_t>(state.shape(0)),
        .heads = static_cast<size_t>(layout_.heads),
        .kv_heads = static_cast<size_t>(layout_.kv_heads),
        .time = static_cast<size_t>(qkv.shape(1)),
        .head_dim = static_cast<size_t>(layout_.head_dim),
        .capacity = static_cast<size_t>(layout_.capacity),
        .dims = static_cast<size_t>(dims_),
        .traditional = traditional_,
        .base = base_,
        .scale = scale_,
        .multiplier = multiplier_,
        .offset_count = offset.size(),
        .slot_count = slots.size()};
    return [dtype = kernel_dtype(state),
            from = bytes(state),
            to = bytes(out),
            step = bytes(qkv),
            call,
            freqs = inputs.size() > 4 ? inputs[4].data<float>() : nullptr,
            offsets = offset.data<int32_t>(),
            places = slots.data<int32_t>()] {
      bridge::rope_append_cpu(dtype, from, to, step, call, freqs, offsets, places);
    };
  });
}

} // namespace mlx_primitives
