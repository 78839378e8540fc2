// If MLX has no Metal, this file replaces metal_encoder.cpp and metallib.cpp.
#include <stdexcept>

#include "runtime/encoder.h"
#include "runtime/metallib.h"

namespace mlx_primitives {

std::unique_ptr<Encoder> metal_encoder(const mx::Stream&, const char* op) {
  throw std::runtime_error("[" + std::string(op) + "] mlx-primitives was built without Metal.");
}

void construct_metal_encoders() {}

std::vector<MetalKernel> metal_kernels() {
  return {};
}

uint32_t metal_kernel_threads(const MetalKernel& kernel) {
  throw std::runtime_error("[" + kernel.name + "] mlx-primitives was built without Metal.");
}

std::string metallib_description() {
  std::string cuda = cuda_description();
  return cuda.empty() ? "none: built without Metal" : cuda;
}

} // namespace mlx_primitives
