#include <stdexcept>

#include "gpu/metallib.h"
#include "ops/activation.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/softmax.h"

// Compiled in place of gpu/ where the library is built without Metal.
namespace mlx_primitives {

#define NO_GPU(TYPE, OP)                                                          \
  void TYPE::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {   \
    throw std::runtime_error("[" OP "] mlx-primitives was built without Metal."); \
  }

NO_GPU(Activation, "activation")
NO_GPU(Affine, "affine")
NO_GPU(Linear, "linear")
NO_GPU(RmsNorm, "rms_norm")
NO_GPU(Softmax, "softmax")
NO_GPU(Rope, "rope")

std::string metallib_description() {
  return "none: built without Metal";
}

} // namespace mlx_primitives
