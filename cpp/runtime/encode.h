#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "mlx/primitives.h"
#include "runtime/dispatch.h"

namespace mlx_primitives {

/** The dispatches of an op, in order, for threadgroups of at most this number of threads. */
using Plan = std::function<std::vector<Dispatch>(uint32_t max_threads)>;

/**
 * Encodes the dispatches that `plan` returns for a largest threadgroup, in order. A kernel that
 * needs many registers may allow fewer threads than planned. Then `plan` runs again with that
 * limit. Throws if the library was built without Metal.
 *
 * A plan is kept, because planning takes longer than encoding. It is used again for an equivalent
 * primitive with arrays of the same types, shapes, strides and relative places in memory, because a
 * plan depends on nothing else.
 */
void encode(
    const std::shared_ptr<mx::Primitive>& primitive,
    const Arrays& inputs,
    const Arrays& outputs,
    const Plan& plan);

/** Constructs this thread's store of the plans that `encode` keeps. */
void prepare_plans();

} // namespace mlx_primitives
