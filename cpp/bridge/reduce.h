// The C++ side of src/ffi/reduce.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"
#include "ops/reduce.h"

namespace mlx_primitives::bridge {

Handle reduction(const MlxArray& x, ReductionKind kind, bool all, bool keepdims);

} // namespace mlx_primitives::bridge
