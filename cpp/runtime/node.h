// Access to private members of MLX's arrays.
#pragma once

#include <memory>

#include "mlx/array.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * The node of an array. MLX has no weak reference to a node. A strong one would prevent MLX from
 * reusing the node's memory during the evaluation.
 */
std::shared_ptr<const void> node_of(const mx::array& array);

} // namespace mlx_primitives
