// Makes the inputs of our primitives row-contiguous.
#pragma once

#include "mlx/array.h"
#include "mlx/primitives.h"
#include "mlx/stream.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * Builds a node that makes x row-contiguous. If x is already row-contiguous, the result shares its
 * memory. This replaces `mx::contiguous`, which on a CPU copies on one thread, and writes to null
 * if the system has no memory.
 */
mx::array contiguous(const mx::array& x, mx::Stream s);

/**
 * The condition under which an op of MLX only sets shape and strides, without a task. `always`: no
 * condition. `of_rows`: the input is row-contiguous. `contiguous`: the input is row-contiguous, and
 * has little more memory than its elements need. `none`: the op always needs a task.
 */
enum class View { none, always, of_rows, contiguous };
View view_kind(mx::Primitive& primitive);

/**
 * Whether an op of MLX overwrites a part of its input. The op does this in place if nothing else
 * holds the input's memory, and otherwise in a copy.
 */
bool updates_slice(mx::Primitive& primitive);

} // namespace mlx_primitives
