// A graph node at which an evaluation on a CPU waits for its stream.
#pragma once

#include "mlx/utils.h"
#include "runtime/dispatch.h"

namespace mlx_primitives {

/**
 * Returns a node with the value of `x` that depends on `others`. MLX queues about fifty CPU ops
 * ahead of the op that runs, and allocates the results of each op when it queues the op. At this
 * node, MLX's evaluation waits until the queued ops have run. So the ops after the node can use the
 * memory that the earlier ops free.
 */
mx::array after(const mx::array& x, const Arrays& others, mx::StreamOrDevice s);

} // namespace mlx_primitives
