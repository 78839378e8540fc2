// The copy that makes the inputs of our primitives row-contiguous.
#pragma once

#include "mlx/array.h"
#include "mlx/primitives.h"
#include "mlx/stream.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * A node that makes x row-contiguous, as `mx::contiguous` does. If x is row-contiguous already, the
 * result shares its memory. On a CPU, `mx::contiguous` copies on one thread, and writes to null if
 * the system has no memory.
 */
mx::array contiguous(const mx::array& x, mx::Stream s);

/**
 * When an op of MLX only sets shape and strides, without a task: never; always; if its input is
 * row-contiguous (`of_rows`); or if the input is row-contiguous and has little more memory than its
 * elements need (`contiguous`).
 */
enum class View { none, always, of_rows, contiguous };
View view_kind(mx::Primitive& primitive);

/**
 * Whether an op of MLX writes to a part of its input: in place if nothing else holds the input's
 * memory, else in a copy.
 */
bool updates_slice(mx::Primitive& primitive);

} // namespace mlx_primitives
