#include "ops/quantized_matmul.h"

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/quantized_matmul.rs.h"

namespace mlx_primitives {

void QuantizedMatmul::run_on_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  for (const auto& input : inputs) {
    require_row_contiguous("quantized_linear", input);
  }
  auto& out = outputs[0];
  auto more = extras(inputs);
  if (more.residual) {
    donate_or_allocate(inputs.back(), out);
  } else {
    allocate(out);
  }
  cpu_dispatch(stream(), out, [&] {
    const auto& x = inputs[0];
    auto start = [](const std::optional<mx::array>& a) { return a ? bytes(*a) : nullptr; };
    bridge::QuantizedCall call{
        kernel_dtype(x),
        kind_.format.mxfp4,
        static_cast<uint32_t>(kind_.format.bits),
        static_cast<size_t>(kind_.format.group_size),
        bytes(x),
        x.size() / x.shape(-1),
        static_cast<size_t>(x.shape(-1)),
        start(more.norm),
        kind_.eps,
        kind_.swiglu,
        start(more.bias),
        start(more.residual),
        bytes(out)};
    std::vector<bridge::QuantizedPart> parts;
    for (int part = 0; part < kind_.parts; ++part) {
      auto w = weight(inputs, part);
      auto columns = static_cast<size_t>(w.packed.shape(0));
      parts.push_back({bytes(w.packed), bytes(w.scales), start(w.biases), columns});
    }
    return [call, parts = std::move(parts)] {
      bridge::quantized_matmul_cpu(call, {parts.data(), parts.size()});
    };
  });
}

} // namespace mlx_primitives
