// Compiled instead of encode.cpp and metallib.cpp if MLX has no Metal.
#include <stdexcept>

#include "runtime/encode.h"
#include "runtime/metallib.h"

namespace mlx_primitives {

void encode(
    const mx::Stream&, const char* op, const std::function<std::vector<Dispatch>(uint32_t)>&) {
  throw std::runtime_error("[" + std::string(op) + "] mlx-primitives was built without Metal.");
}

std::string metallib_description() {
  return "none: built without Metal";
}

} // namespace mlx_primitives
