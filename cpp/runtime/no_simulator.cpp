#include "runtime/primitive.h"

// This file is compiled only if the simulated Metal device is not.
namespace mlx_primitives {

bool simulating() {
  return false;
}

} // namespace mlx_primitives
