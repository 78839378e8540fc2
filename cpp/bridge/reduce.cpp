#include "bridge/reduce.h"

#include "mlx-primitives/src/ffi/reduce.rs.h"

namespace mlx_primitives::bridge {

Handle reduction(const MlxArray& x, ReductionKind kind, bool all, bool keepdims) {
  return handle(mlx_primitives::reduce(x, kind, all, keepdims, here()));
}

} // namespace mlx_primitives::bridge
