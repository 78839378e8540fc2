// Evaluation for the bridge. Only the arrays that depend on a failed task get an error, and every
// wait ends.
#pragma once

#include <functional>
#include <vector>

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * Computes arrays and waits for them. Throws if the computation of an array fails or has failed
 * earlier. An array that failed never gets a value.
 */
void evaluate(const std::vector<mx::array>& arrays);

/**
 * Queues the computation of arrays. If the computation fails, reading an array throws the error.
 */
void evaluate_async(const std::vector<mx::array>& arrays);

/** Waits for the queued tasks of a stream, whether they fail or not. */
void synchronize(mx::Stream stream);

/**
 * Queues a task on a CPU stream. The task computes an output of a primitive that is being
 * evaluated, and the output's siblings. `output` is the output's `array::id`. If the task throws,
 * `spoil` overwrites the data, and these arrays and the arrays that depend on them fail. The task
 * does not run if one of its inputs has failed.
 */
void queue(
    mx::Stream stream,
    uintptr_t output,
    std::function<void()> task,
    std::function<void()> spoil = [] {});

} // namespace mlx_primitives
