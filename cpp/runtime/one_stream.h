// Evaluation of small graphs on one CPU stream, with few tasks.
#pragma once

#include <vector>

#include "mlx/array.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * Queues the computation of arrays as `mx::async_eval` does, with several kernels in a task.
 * Returns false, and queues nothing, if the graph needs other streams, is being traced, or computes
 * large results, which take far longer than handing over tasks.
 */
bool queue_on_one_stream(const std::vector<mx::array>& arrays);

} // namespace mlx_primitives
