// A node of a graph at which an evaluation on a CPU waits for its stream.
#pragma once

#include "mlx/utils.h"
#include "runtime/dispatch.h"

namespace mlx_primitives {

/**
 * `x`, queued after `others`. MLX queues about fifty CPU ops ahead of the op that runs, and
 * allocates the results of each op when it queues it. At this node, it waits until the queued ops
 * have run, so that the ops after the node can use the memory that is freed.
 */
mx::array after(const mx::array& x, const Arrays& others, mx::StreamOrDevice s);

} // namespace mlx_primitives
