// Evaluation for the bridge. An error belongs to the arrays that it concerns, and every wait ends.
#pragma once

#include <functional>
#include <vector>

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * Computes arrays and waits for them. Throws if the computation of one of them fails or failed
 * earlier: an array that failed never gets a value.
 */
void evaluate(const std::vector<mx::array>& arrays);

/** Queues the computation of arrays. If it fails, the error is thrown when an array is read. */
void evaluate_async(const std::vector<mx::array>& arrays);

/** Waits for the queued tasks of a stream, whether they fail or not. */
void synchronize(mx::Stream stream);

/**
 * Queues a task on a CPU stream. The task computes the output with this `array::id` of a primitive
 * that is being evaluated, and the output's siblings. If it throws, `spoil` overwrites the data,
 * and these arrays and their dependents fail. The task does not run if one of its inputs has
 * failed.
 */
void queue(
    mx::Stream stream,
    uintptr_t output,
    std::function<void()> task,
    std::function<void()> spoil = [] {});

} // namespace mlx_primitives
