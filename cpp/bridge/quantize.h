// The C++ side of src/ffi/quantize.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

ListHandle quantize(const MlxArray& x, int32_t group_size, int32_t bits);
Handle dequantize(
    const MlxArray& packed,
    const MlxArray& scales,
    const MlxArray& biases,
    int32_t group_size,
    int32_t bits);

} // namespace mlx_primitives::bridge
