// The copy that makes the inputs of our primitives row-contiguous.
#pragma once

#include "mlx/array.h"
#include "mlx/primitives.h"
#include "mlx/stream.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * A node that gives x row-contiguous, with its memory where it is that already, as `mx::contiguous`
 * does. On a CPU, that copies on one thread, and writes to null if the system has no memory.
 */
mx::array contiguous(const mx::array& x, mx::Stream s);

/**
 * What an op of MLX does besides setting shape and strides: nothing; nothing if its input is
 * row-contiguous; nothing if, besides, the input has little more memory than its elements need.
 */
enum class View { none, always, of_rows, contiguous };
View view_kind(mx::Primitive& primitive);

/** Whether an op of MLX writes a part of its input, in place where nothing else holds that. */
bool updates_slice(mx::Primitive& primitive);

} // namespace mlx_primitives
