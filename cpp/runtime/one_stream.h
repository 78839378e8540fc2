// Evaluation of small graphs on one stream of a CPU, with few tasks, or of an NVIDIA GPU.
#pragma once

#include <vector>

#include "mlx/array.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * Queues the computation of arrays as `mx::async_eval` does: on a CPU with several kernels in a
 * task; on an NVIDIA GPU in a shorter walk than MLX's, after which an op may write into memory that
 * earlier work of the stream still reads. Returns false, and queues nothing, if the graph needs
 * other streams, is being traced, or computes large results, which take far longer than handing
 * over tasks.
 */
bool queue_on_one_stream(const std::vector<mx::array>& arrays);

} // namespace mlx_primitives
