// The C++ side of src/ffi/lora.rs.
#pragma once

#include "bridge/quantized_matmul.h"
#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

Handle lora_linear(
    const MlxArray& x,
    const ArrayList& base,
    const QuantizedLayout* layout,
    const MlxArray& a,
    const MlxArray& b,
    float scale);

} // namespace mlx_primitives::bridge
