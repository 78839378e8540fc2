// The C++ side of src/ffi/softmax.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

Handle softmax(const MlxArray& x);
Handle builtin_softmax(const MlxArray& x, bool precise);
LaunchPlan softmax_plan(uint64_t rows, uint32_t axis, rust::Str dtype, uint32_t max_threads);

} // namespace mlx_primitives::bridge
