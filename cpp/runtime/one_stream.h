// Evaluation of small graphs on one stream: of a CPU, with few tasks, or of an NVIDIA GPU.
#pragma once

#include <vector>

#include "mlx/array.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * Queues the computation of arrays as `mx::async_eval` does. On a CPU, a task has several kernels.
 * On an NVIDIA GPU, the walk over the graph is shorter than MLX's, and an op may then write into
 * memory that earlier work of the stream still reads. Returns false, and queues nothing, if the
 * graph needs other streams, is being traced, or computes large results, which take far longer than
 * handing over tasks.
 */
bool queue_on_one_stream(const std::vector<mx::array>& arrays);

} // namespace mlx_primitives
