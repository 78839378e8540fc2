#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "mlx/primitives.h"
#include "runtime/dispatch.h"

namespace mlx_primitives {

/** The dispatches of an op, in order, for a largest threadgroup. */
using Plan = std::function<std::vector<Dispatch>(uint32_t max_threads)>;

/**
 * Encodes the dispatches that `plan` returns for a largest threadgroup, in order. A kernel that
 * needs many registers may allow fewer threads than planned: the plan is then made again within
 * that limit. Throws if the library was built without Metal.
 *
 * A plan is kept, since planning takes longer than encoding. It is not made again for an equivalent
 * primitive with arrays of the same types, shapes, strides and places in memory relative to one
 * another: a plan depends on nothing else.
 */
void encode(
    const std::shared_ptr<mx::Primitive>& primitive,
    const Arrays& inputs,
    const Arrays& outputs,
    const Plan& plan);

/** Constructs the plans that `encode` keeps for this thread. */
void prepare_plans();

} // namespace mlx_primitives
