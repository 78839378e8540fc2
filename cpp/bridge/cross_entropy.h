// The C++ side of src/ffi/cross_entropy.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

/** `ignored` counts if `ignores`. */
Handle cross_entropy(
    const MlxArray& x, const MlxArray& targets, float smoothing, bool ignores, int32_t ignored);
LaunchPlan cross_entropy_plan(
    uint64_t rows, uint32_t classes, rust::Str dtype, bool gradient, uint32_t max_threads);

} // namespace mlx_primitives::bridge
