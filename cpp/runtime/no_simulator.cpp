#include "runtime/primitive.h"

// Compiled unless the stand-in for Metal's device is compiled.
namespace mlx_primitives {

bool simulating() {
  return false;
}

} // namespace mlx_primitives
