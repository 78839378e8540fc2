#pragma once

#include "bridge/core.h"

namespace mlx_primitives::bridge {

// Defined by cxx in mlx-primitives/src/ffi/io.rs.h.
struct MetadataEntry;
struct Stored;

Handle stored(rust::Box<Stored> from, Ints shape, Dtype dtype);
void save_safetensors(
    rust::Str path,
    rust::Slice<const rust::String> names,
    const ArrayList& arrays,
    rust::Slice<const MetadataEntry> metadata);

} // namespace mlx_primitives::bridge
