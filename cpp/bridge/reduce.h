// The C++ side of src/ffi/reduce.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"
#include "ops/reduce.h"

namespace mlx_primitives::bridge {

Handle reduction(const MlxArray& x, ReductionKind kind, bool all, bool keepdims);
rust::Vec<LaunchPlan> reduction_plan(
    ReductionKind kind, uint64_t rows, uint64_t axis, rust::Str dtype, uint32_t max_threads);

} // namespace mlx_primitives::bridge
