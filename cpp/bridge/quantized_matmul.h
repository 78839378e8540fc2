// The C++ side of src/ffi/quantized_matmul.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

struct QuantizedLayout;
struct QuantizedSteps;

void check_quantized(const ArrayList& weight, const QuantizedLayout& layout);
Handle quantized_matmul(
    const MlxArray& x,
    const ArrayList& weights,
    const QuantizedLayout& layout,
    const QuantizedSteps& steps,
    const MlxArray* norm,
    const MlxArray* bias,
    const MlxArray* residual);
ListHandle pack_matrix(const MlxArray& w, const QuantizedLayout& layout);
Handle unpack_matrix(const ArrayList& weight, const QuantizedLayout& layout, Dtype dtype);

} // namespace mlx_primitives::bridge
