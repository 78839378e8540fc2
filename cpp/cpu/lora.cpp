#include "ops/lora.h"

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/lora.rs.h"

namespace mlx_primitives {

void LoraLinear::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  for (const auto& input : inputs) {
    require_row_contiguous("lora_linear", input);
  }
  auto& out = outputs[0];
  allocate(out);
  cpu_dispatch(stream(), out, [&] {
    auto& x = inputs[0];
    auto columns = static_cast<size_t>(out.shape(-1));
    bool biased = inputs.size() > 5;
    bridge::LoraCall call{
        kernel_dtype(x),
        format_.has_value(),
        format_ && format_->mxfp4,
        format_ ? static_cast<uint32_t>(format_->bits) : 0,
        format_ ? static_cast<size_t>(format_->group_size) : 0,
        bytes(x),
        out.size() / columns,
        static_cast<size_t>(x.shape(-1)),
        columns,
        bytes(inputs[3]),
        format_ ? bytes(inputs[4]) : nullptr,
        biased ? bytes(inputs[5]) : nullptr,
        bytes(inputs[1]),
        bytes(inputs[2]),
        static_cast<size_t>(inputs[2].shape(1)),
        rounded_scale(x.dtype()),
        bytes(out)};
    return [call] { bridge::lora_cpu(call); };
  });
}

} // namespace mlx_primitives
