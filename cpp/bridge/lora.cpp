#include "bridge/lora.h"

#include "mlx-primitives/src/ffi/lora.rs.h"
#include "mlx-primitives/src/ffi/quantized_matmul.rs.h"
#include "ops/lora.h"

namespace mlx_primitives::bridge {

Handle lora_linear(
    const MlxArray& x,
    const ArrayList& base,
    const QuantizedLayout* layout,
    const MlxArray& a,
    const MlxArray& b,
    float scale) {
  LoraBase matrix{base, std::nullopt};
  if (layout) {
    matrix.format = QuantizedFormat{layout->group_size, layout->bits, layout->mxfp4};
  }
  return handle(mlx_primitives::lora_linear(x, matrix, a, b, scale, here()));
}

} // namespace mlx_primitives::bridge
