// Converts the inputs of our primitives to another type.
#pragma once

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * Converts x to another type, with the same bits as `mx::astype`. Returns x itself if it has that
 * type. On a GPU, calls `mx::astype`, which reports there if memory has run out.
 */
mx::array convert(const mx::array& x, mx::Dtype dtype, mx::Stream s);

/**
 * Converts integers to int32. A number outside int32's range becomes the smallest or largest int32.
 */
mx::array clamp_to_int32(const mx::array& x, mx::Stream s);

} // namespace mlx_primitives
