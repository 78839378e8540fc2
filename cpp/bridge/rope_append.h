// The C++ side of src/ffi/rope_append.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

struct AppendLayout;
struct AppendRotation;

Handle rope_append(
    const MlxArray& state,
    const MlxArray& qkv,
    const AppendLayout& layout,
    const AppendRotation& rotation,
    const MlxArray* freqs,
    const MlxArray& offset,
    const MlxArray* slots);

} // namespace mlx_primitives::bridge
