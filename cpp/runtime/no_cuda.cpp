// If the feature `cuda` is off, this file replaces the files cuda_*.cpp.
#include <cstdlib>

#include "runtime/encoder.h"
#include "runtime/exchange.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

std::unique_ptr<Encoder> cuda_encoder(const mx::Stream&) {
  return nullptr;
}

void construct_cuda_encoders() {}

bool is_cuda(const mx::Stream&) {
  return false;
}

bool is_graph_full(const mx::Stream&) {
  return false;
}

void hand_over_graph(const mx::Stream&, std::function<void()>) {
  refuse("CUDA", "expected a build with the feature `cuda`, got one without");
}

bool plans_for_nvidia(const mx::Stream&) {
  static const bool asked = std::getenv("MLX_PRIMITIVES_TEST_NVIDIA") != nullptr;
  return simulating() && asked;
}

void plan_anew(Launch&, uint32_t, const mx::Stream&) {}

NvidiaLimits nvidia_limits(const mx::Stream&) {
  return {1, 32 << 10}; // so that even small products use every kernel
}

bool has_device_memory() {
  return false;
}

void prefetch_cuda(const std::vector<mx::array>&) {}

std::string cuda_description() {
  return "";
}

struct PeerMemory {};

std::shared_ptr<PeerMemory> share_memory(uint32_t, uint32_t) {
  return nullptr;
}

std::string handle_of(const PeerMemory&) {
  return "";
}

void reach_peers(PeerMemory&, const std::string&) {}

bool exchanges(const mx::array&) {
  return false;
}

mx::array exchange(const std::shared_ptr<PeerMemory>&, const mx::array& x, mx::Stream) {
  return x;
}

} // namespace mlx_primitives
