// Declares an op of libmlx with a wrong parameter. The check must find this.
#include "mlx/array.h"

namespace mlx::core {
array softmax(const array& x, const char* axis);
}

mlx::core::array plant(const mlx::core::array& x) {
  return mlx::core::softmax(x, "last");
}
