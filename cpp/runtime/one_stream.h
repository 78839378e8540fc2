// Evaluates small graphs on one stream. On a CPU this needs few tasks. The stream may also belong
// to an NVIDIA GPU.
#pragma once

#include <vector>

#include "mlx/array.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * Queues the computation of arrays as `mx::async_eval` does, but faster. On a CPU, one task runs
 * several kernels. On an NVIDIA GPU, the walk over the graph is shorter than MLX's, and an op can
 * reuse memory that earlier work of the stream still reads. Returns false and queues nothing if the
 * graph needs other streams, is being traced, or computes large results. Large results take far
 * longer than handing over tasks.
 */
bool queue_on_one_stream(const std::vector<mx::array>& arrays);

} // namespace mlx_primitives
