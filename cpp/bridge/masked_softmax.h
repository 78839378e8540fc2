// The C++ side of src/ffi/masked_softmax.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

/** `mask` may be null; the window counts if `sliding`. */
Handle masked_softmax(
    const MlxArray& x,
    float scale,
    const MlxArray* mask,
    bool causal,
    bool sliding,
    int32_t window);
LaunchPlan masked_softmax_plan(
    uint64_t rows, uint32_t keys, rust::Str dtype, bool gradient, uint32_t max_threads);

} // namespace mlx_primitives::bridge
