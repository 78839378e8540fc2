// On a GPU, rope with one offset in a vector takes other numbers for the offsets of all sequences
// but the first.
//
// Exit status: 0 if the fault was seen, 1 if not, 2 without a GPU.
#include <cstdio>

#include "mlx/mlx.h"

namespace mx = mlx::core;

/** The largest difference between the results on the GPU and on the CPU. */
float difference(const mx::array& offset) {
  auto turned = [&offset](mx::Device device) {
    mx::set_default_device(device);
    auto x = mx::sin(mx::reshape(mx::arange(0, 3 * 5 * 8, mx::float32), {3, 1, 5, 8}));
    auto result = mx::fast::rope(x, 8, false, 10000.0f, 1.0f, offset);
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
  float scalar = difference(mx::array(7));
  float vector = difference(mx::array({7}, {1}));
  std::printf("a scalar offset: %g from the CPU's result; a vector of one: %g\n", scalar, vector);
  return scalar < 1e-4f && vector > 1e-3f ? 0 : 1;
}
