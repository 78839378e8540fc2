#include "ops/quantize.h"

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/quantize.rs.h"

namespace mlx_primitives {

void Quantize::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  const auto& x = inputs[0];
  require_row_contiguous("quantize", x);
  for (auto& out : outputs) {
    allocate(out);
  }
  cpu_dispatch(stream(), outputs[0], [&] {
    return [dtype = kernel_dtype(x),
            in = bytes(x),
            packed = outputs[0].data<uint32_t>(),
            scales = bytes(outputs[1]),
            biases = bytes(outputs[2]),
            groups = x.size() / group_size_,
            group_size = static_cast<size_t>(group_size_),
            bits = static_cast<size_t>(bits_)] {
      bridge::quantize_cpu(dtype, in, packed, scales, biases, groups, group_size, bits);
    };
  });
}

void Dequantize::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& out = outputs[0];
  for (const auto& input : inputs) {
    require_row_contiguous("dequantize", input);
  }
  allocate(out);
  cpu_dispatch(stream(), out, [&] {
    return [dtype = kernel_dtype(out),
            packed = inputs[0].data<uint32_t>(),
            scales = bytes(inputs[1]),
            biases = bytes(inputs[2]),
            to = bytes(out),
            groups = out.size() / group_size_,
            group_size = static_cast<size_t>(group_size_),
            bits = static_cast<size_t>(bits_)] {
      bridge::dequantize_cpu(dtype, packed, scales, biases, to, groups, group_size, bits);
    };
  });
}

} // namespace mlx_primitives
