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
 * Queues a task on a stream of the CPU that computes an output of a primitive that is being
 * evaluated, by its `array::id`, and the output's siblings. What the task throws fails them and
 * what is computed from them, after `spoil` has made them look like no result. Where what the task
 * reads has failed, it does not run.
 */
void queue(
    mx::Stream stream,
    uintptr_t output,
    std::function<void()> task,
    std::function<void()> spoil = [] {});

} // namespace mlx_primitives
