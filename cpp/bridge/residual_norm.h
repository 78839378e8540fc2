// The C++ side of src/ffi/residual_norm.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

ListHandle rms_norm_residual(
    const MlxArray& x, const MlxArray& residual, const MlxArray* weight, float eps);
ListHandle layer_norm_residual(
    const MlxArray& x,
    const MlxArray& residual,
    const MlxArray* weight,
    const MlxArray* bias,
    float eps);
LaunchPlan residual_norm_plan(
    uint64_t rows, uint32_t axis, rust::Str dtype, bool centered, uint32_t max_threads);

} // namespace mlx_primitives::bridge
