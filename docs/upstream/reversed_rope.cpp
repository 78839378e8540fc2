// On a GPU, rope of a reversed view writes in front of its result.
//
// Exit status: 0 if the fault was seen, 1 if not, 2 without a GPU.
#include <cstdio>

#include "mlx/mlx.h"

namespace mx = mlx::core;

/** rope of a view whose strides are negative, or of a copy of the view. */
mx::array turned(mx::Device device, bool view) {
  mx::set_default_device(device);
  auto x = mx::sin(mx::reshape(mx::arange(0, 2 * 3 * 5 * 8, mx::float32), {2, 3, 5, 8}));
  mx::eval(x);
  auto reversed = mx::slice(x, {-1, -1, -1, -1}, {-3, -4, -6, -9}, {-1, -1, -1, -1});
  if (!view) {
    reversed = mx::contiguous(reversed);
  }
  mx::eval(reversed);
  auto result = mx::contiguous(mx::fast::rope(reversed, 8, false, 10000.0f, 1.0f, 7));
  mx::eval(result);
  return result;
}

int main() {
  if (!mx::is_available(mx::Device::gpu)) {
    std::puts("not run: there is no GPU");
    return 2;
  }
  auto want = turned(mx::Device::cpu, true);
  auto copy = turned(mx::Device::gpu, false);
  auto view = turned(mx::Device::gpu, true);
  mx::set_default_device(mx::Device::cpu);
  auto off = [&want](const mx::array& got) {
    return mx::max(mx::abs(mx::subtract(got, want))).item<float>();
  };
  float of_copy = off(copy);
  float of_view = off(view);
  std::printf("of a copy: %g from the CPU's result; of the view: %g\n", of_copy, of_view);
  return of_copy < 1e-4f && !(of_view < 1e-3f) ? 0 : 1;
}
