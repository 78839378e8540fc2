#include "ops/attention.h"

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/attention.rs.h"

namespace mlx_primitives {

namespace {

/** One of up to three arrays from `at` on. */
bridge::AttentionView view(const std::vector<mx::array>& inputs, int at, bool there = true) {
  if (!there) {
    return {0, {}};
  }
  auto& x = inputs[at];
  bridge::AttentionView view{reinterpret_cast<size_t>(bytes(x)), {}};
  for (int i = 0; i < 4; ++i) {
    view.strides[i] = x.strides(i);
  }
  return view;
}

} // namespace

void Attention::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& out = outputs[0];
  allocate(out);
  cpu_dispatch(stream(), out, [&] {
    auto& q = inputs[0];
    bool quantized = bits_ > 0;
    bridge::AttentionCall call{
        .batch = static_cast<size_t>(q.shape(0)),
        .heads = static_cast<size_t>(q.shape(1)),
        .kv_heads = static_cast<size_t>(inputs[1].shape(1)),
        .queries = static_cast<size_t>(q.shape(2)),
        .keys = static_cast<size_t>(inputs[1].shape(2)),
        .dim = static_cast<size_t>(q.shape(3)),
        .scale = rules_.scale,
        .soft_cap = rules_.soft_cap,
        .causal = rules_.causal,
        .window = static_cast<size_t>(rules_.window),
        .bits = static_cast<size_t>(bits_),
        .group_size = static_cast<size_t>(group_size_),
        .bool_mask = masked_ && inputs[mask()].dtype() == mx::bool_,
        .q = view(inputs, 0),
        .k = view(inputs, 1),
        .k_scales = view(inputs, 2, quantized),
        .k_biases = view(inputs, 3, quantized),
        .v = view(inputs, values()),
        .v_scales = view(inputs, values() + 1, quantized),
        .v_biases = view(inputs, values() + 2, quantized),
        .mask = view(inputs, mask(), masked_)};
    return [dtype = kernel_dtype(out),
            call,
            sinks = sinks_ ? bytes(inputs[sinks()]) : nullptr,
            to = bytes(out)] { bridge::attention_cpu(dtype, call, sinks, to); };
  });
}

} // namespace mlx_primitives
