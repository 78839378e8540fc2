#include "bridge/rope_append.h"

#include "mlx-primitives/src/ffi/rope_append.rs.h"
#include "ops/rope_append.h"

namespace mlx_primitives::bridge {

Handle rope_append(
    const MlxArray& state,
    const MlxArray& qkv,
    const AppendLayout& layout,
    const AppendRotation& rotation,
    const MlxArray* freqs,
    const MlxArray& offset,
    const MlxArray* slots) {
  Rotation turned{
      rotation.dims,
      rotation.traditional,
      rotation.has_base ? std::optional<float>(rotation.base) : std::nullopt,
      rotation.scale,
      rotation.multiplier,
      optional(freqs)};
  StateLayout divided{layout.heads, layout.kv_heads, layout.head_dim, layout.capacity};
  return handle(
      mlx_primitives::rope_append(state, qkv, divided, turned, offset, optional(slots), here()));
}

} // namespace mlx_primitives::bridge
