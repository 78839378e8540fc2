// The conversion of the inputs of our primitives to another type.
#pragma once

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * The elements of x as another type, bit for bit as `mx::astype` converts them, which it also is
 * on a GPU: there, MLX reports where there is no memory. x itself if it has that type.
 */
mx::array convert(const mx::array& x, mx::Dtype dtype, mx::Stream s);

/** Integers as int32. Those beyond its range become the least or the greatest number. */
mx::array clamp_to_int32(const mx::array& x, mx::Stream s);

} // namespace mlx_primitives
