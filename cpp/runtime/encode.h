#pragma once

#include <functional>

#include "mlx/stream.h"
#include "runtime/dispatch.h"

namespace mlx_primitives {

/**
 * Encodes the dispatches that `plan` returns for a largest threadgroup, in order. A kernel that
 * needs many registers may allow fewer threads than planned: the plan is then made again within
 * that limit. Throws if the library was built without Metal.
 */
void encode(
    const mx::Stream& stream,
    const char* op,
    const std::function<std::vector<Dispatch>(uint32_t max_threads)>& plan);

} // namespace mlx_primitives
