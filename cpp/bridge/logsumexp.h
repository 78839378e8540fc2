// The C++ side of src/ffi/logsumexp.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

Handle logsumexp(const MlxArray& x, bool keepdims);
Handle log_softmax(const MlxArray& x);
LaunchPlan logsumexp_plan(
    uint64_t rows, uint32_t axis, rust::Str dtype, bool subtract, uint32_t max_threads);

} // namespace mlx_primitives::bridge
