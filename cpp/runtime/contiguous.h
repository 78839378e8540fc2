// The copy that makes the inputs of our primitives row-contiguous.
#pragma once

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * A node that gives x row-contiguous, with its memory where it is that already, as `mx::contiguous`
 * does. On a CPU, that copies on one thread, and writes to null if the system has no memory.
 */
mx::array contiguous(const mx::array& x, mx::Stream s);

} // namespace mlx_primitives
