// An op that libmlx exports, with a wrong parameter.
#include "mlx/array.h"

namespace mlx::core {
array softmax(const array& x, const char* axis);
}

mlx::core::array plant(const mlx::core::array& x) {
  return mlx::core::softmax(x, "last");
}
