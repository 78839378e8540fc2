// Declared in MLX's headers, absent from what libmlx exports.
#include "mlx/backend/gpu/copy.h"

mlx::core::array plant(const mlx::core::array& x, const mlx::core::Stream& stream) {
  return mlx::core::contiguous_copy_gpu(x, stream);
}
