// The C++ side of src/ffi/rope.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

struct RopeCall;

Handle rope(
    const MlxArray& x,
    int32_t dims,
    bool traditional,
    const float* base,
    float scale,
    const MlxArray& offset,
    const MlxArray* freqs);
Handle builtin_rope(
    const MlxArray& x,
    int32_t dims,
    bool traditional,
    const float* base,
    float scale,
    const MlxArray& offset,
    const MlxArray* freqs);
LaunchPlan rope_plan(
    const RopeCall& call,
    rust::Str dtype,
    bool explicit_freqs,
    bool in_place,
    uint32_t max_threads);

} // namespace mlx_primitives::bridge
