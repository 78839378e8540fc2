// A node of a graph at which an evaluation on a CPU waits for its stream.
#pragma once

#include "mlx/utils.h"
#include "runtime/dispatch.h"

namespace mlx_primitives {

/**
 * `x`, queued after `others`. MLX queues some fifty ops of a CPU ahead of the one that runs, and
 * allocates the results of each when it queues it. At this node it waits for the ops that it has
 * queued, so that the ops after the node can use the memory that they free.
 */
mx::array after(const mx::array& x, const Arrays& others, mx::StreamOrDevice s);

} // namespace mlx_primitives
