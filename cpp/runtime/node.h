// Access to what MLX's arrays keep to themselves.
#pragma once

#include <memory>

#include "mlx/array.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * The node of an array. MLX has no weak reference to a node, and a strong one would keep the node's
 * memory from being reused during the evaluation.
 */
std::shared_ptr<const void> node_of(const mx::array& array);

} // namespace mlx_primitives
