// Evaluation as the bridge offers it: errors belong to the arrays that they concern, and no wait is
// without an end.
#pragma once

#include <functional>
#include <vector>

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * Computes arrays and waits for them. Throws if one of them fails, now or when it was computed
 * before: an array that failed never becomes a result.
 */
void evaluate(const std::vector<mx::array>& arrays);

/** Queues the computation of arrays; whoever reads them is told if it fails. */
void evaluate_async(const std::vector<mx::array>& arrays);

/** Waits for what was queued on a stream, whether it fails or not. */
void synchronize(mx::Stream stream);

/**
 * Queues a task on a stream of the CPU. What it throws fails the evaluation that is being queued,
 * after `spoil` has made the task's outputs look like no result; so does a failure of what the task
 * reads, and the task does not run then.
 */
void queue(mx::Stream stream, std::function<void()> task, std::function<void()> spoil = [] {});

} // namespace mlx_primitives
