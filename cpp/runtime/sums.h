// Sums of gradients.
#pragma once

#include "runtime/primitive.h"

namespace mlx_primitives {

/**
 * MLX adds the gradients of an array that several ops read, with one kernel for each sum. This pass
 * lets the kernel of one gradient add the other gradient, if it can. Nodes that `values` depend on
 * are not changed.
 */
void merge_sums(const Arrays& values, Arrays& gradients);

} // namespace mlx_primitives
