#include "bridge/quantize.h"

#include "mlx-primitives/src/ffi/quantize.rs.h"
#include "ops/quantize.h"

namespace mlx_primitives::bridge {

ListHandle quantize(const MlxArray& x, int32_t group_size, int32_t bits) {
  return handle(mlx_primitives::quantize(x, group_size, bits, here()));
}

Handle dequantize(
    const MlxArray& packed,
    const MlxArray& scales,
    const MlxArray& biases,
    int32_t group_size,
    int32_t bits) {
  return handle(mlx_primitives::dequantize(packed, scales, biases, group_size, bits, here()));
}

} // namespace mlx_primitives::bridge
