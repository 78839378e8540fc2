// Calls a function that MLX's headers declare but libmlx does not export. The check must find this.
#include "mlx/backend/gpu/copy.h"

mlx::core::array plant(const mlx::core::array& x, const mlx::core::Stream& stream) {
  return mlx::core::contiguous_copy_gpu(x, stream);
}
