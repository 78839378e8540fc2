// On an NVIDIA GPU, rope of an array that was broadcast gives all its rows the same numbers.
//
// Exit status: 0 if the fault was seen, 1 if not, 2 without a GPU.
#include <cstdio>

#include "mlx/mlx.h"

namespace mx = mlx::core;

/** The largest difference between the results on the GPU and on the CPU. */
float difference(bool copied) {
  auto turned = [copied](mx::Device device) {
    mx::set_default_device(device);
    auto row = mx::sin(mx::arange(0, 8, mx::float32));
    auto x = mx::broadcast_to(row, {3, 1, 5, 8});
    auto result = mx::fast::rope(copied ? mx::contiguous(x) : x, 8, false, 10000.0f, 1.0f, 7);
    mx::eval(result);
    return result;
  };
  auto on_cpu = turned(mx::Device::cpu);
  auto on_gpu = turned(mx::Device::gpu);
  mx::set_default_device(mx::Device::cpu);
  return mx::max(mx::abs(mx::subtract(on_gpu, on_cpu))).item<float>();
}

int main() {
  if (!mx::is_available(mx::Device::gpu)) {
    std::puts("not run: there is no GPU");
    return 2;
  }
  float copied = difference(true);
  float shared = difference(false);
  std::printf("a copy: %g from the CPU's result; a broadcast array: %g\n", copied, shared);
  return copied < 1e-4f && shared > 1e-3f ? 0 : 1;
}
