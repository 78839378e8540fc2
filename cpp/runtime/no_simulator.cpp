#include "runtime/primitive.h"

// Compiled wherever the stand-in for Metal's device is not.
namespace mlx_primitives {

bool simulating() {
  return false;
}

} // namespace mlx_primitives
