// Access to private members of MLX's arrays.
#pragma once

#include <memory>

#include "mlx/array.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * Returns the graph node of an array, so that callers can keep a weak reference to it or count its
 * holders. MLX offers only strong references. A strong reference would keep MLX from reusing the
 * node's memory during the evaluation.
 */
std::shared_ptr<const void> node_of(const mx::array& array);

} // namespace mlx_primitives
