// The C++ side of src/ffi/layer_norm.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

Handle layer_norm(const MlxArray& x, const MlxArray* weight, const MlxArray* bias, float eps);
Handle builtin_layer_norm(
    const MlxArray& x, const MlxArray* weight, const MlxArray* bias, float eps);
LaunchPlan layer_norm_plan(uint64_t rows, uint32_t axis, rust::Str dtype, uint32_t max_threads);

} // namespace mlx_primitives::bridge
