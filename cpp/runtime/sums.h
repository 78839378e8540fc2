// Sums of gradients.
#pragma once

#include "runtime/primitive.h"

namespace mlx_primitives {

/**
 * MLX adds the gradients of an array that several ops read, by a kernel for each sum. This lets the
 * kernel of one of the two add the other, where it can. Nodes that `values` needs stay as they are.
 */
void merge_sums(const Arrays& values, Arrays& gradients);

} // namespace mlx_primitives
