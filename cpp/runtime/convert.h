// The conversion of the inputs of our primitives to another type.
#pragma once

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * The elements of x as another type, with the same bits as `mx::astype`; x itself if it has that
 * type. On a GPU this is `mx::astype`, because MLX reports there if memory has run out.
 */
mx::array convert(const mx::array& x, mx::Dtype dtype, mx::Stream s);

/** Integers as int32. Numbers outside its range become its least or its greatest number. */
mx::array clamp_to_int32(const mx::array& x, mx::Stream s);

} // namespace mlx_primitives
