// The C++ side of src/ffi/quantized_matmul.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

struct QuantizedLayout;

void check_quantized(const ArrayList& weight, const QuantizedLayout& layout);
Handle quantized_matmul(
    const MlxArray& x,
    const ArrayList& weights,
    const QuantizedLayout& layout,
    const MlxArray* norm,
    float eps,
    const MlxArray* bias,
    const MlxArray* residual,
    bool swiglu);
ListHandle pack_matrix(const MlxArray& w, const QuantizedLayout& layout);
Handle unpack_matrix(const ArrayList& weight, const QuantizedLayout& layout, Dtype dtype);

} // namespace mlx_primitives::bridge
