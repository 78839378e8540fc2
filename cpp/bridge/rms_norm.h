// The C++ side of src/ffi/rms_norm.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

Handle rms_norm(const MlxArray& x, const MlxArray* weight, float eps);
Handle builtin_rms_norm(const MlxArray& x, const MlxArray* weight, float eps);
LaunchPlan rms_norm_plan(
    uint64_t rows, uint32_t axis, rust::Str dtype, bool weighted, uint32_t max_threads);

} // namespace mlx_primitives::bridge
