#include "bridge/reduce.h"

#include "mlx-primitives/src/ffi/reduce.rs.h"

namespace mlx_primitives::bridge {

Handle reduction(const MlxArray& x, ReductionKind kind, bool all, bool keepdims) {
  // The result is small, but a view of a small array may be copied first.
  const auto& shape = x.shape();
  require_memory("reduce", {shape.begin(), shape.size()}, x.dtype());
  return handle(mlx_primitives::reduce(x, kind, all, keepdims, here()));
}

} // namespace mlx_primitives::bridge
