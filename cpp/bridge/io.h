#pragma once

#include "bridge/core.h"

namespace mlx_primitives::bridge {

// Defined by cxx in mlx-primitives/src/io/bridge.rs.h.
struct MetadataEntry;
struct Stored;

Handle stored(rust::Box<Stored> from, Ints shape, Dtype dtype);
bool is_waiting(const mx::array& a) noexcept;
rust::Box<Stored> stored_of(const mx::array& waiting);
Handle stored_part(const mx::array& whole, size_t axis, int32_t start, int32_t end);
void save_safetensors(
    rust::Str path,
    rust::Slice<const rust::String> names,
    const ArrayList& arrays,
    rust::Slice<const MetadataEntry> metadata);

} // namespace mlx_primitives::bridge
