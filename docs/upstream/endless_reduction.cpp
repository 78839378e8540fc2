// A sum along an axis without elements, of an array that is not row-contiguous, does not return.
//
// Exit status: 0 if the fault was seen, 1 if not.
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <thread>

#include "mlx/mlx.h"

namespace mx = mlx::core;
using namespace std::chrono_literals;

int main() {
  std::thread([] {
    std::this_thread::sleep_for(10s);
    std::puts("a sum of nothing did not return in 10 s");
    std::fflush(stdout);
    _exit(0);
  }).detach();

  auto turned = mx::transpose(mx::ones({5, 6, 7, 4}, mx::uint8), {0, 2, 1, 3});
  auto strided = mx::slice(turned, {0, 0, 0, 0}, {5, 7, 6, 4}, {1, 2, 2, 2});
  auto empty = mx::transpose(mx::zeros({3, 0, 4}, mx::uint8), {2, 1, 0});
  for (int i = 0; i < 100; i++) {
    // A reduction along three axes leaves its plan on the stack of the stream's thread.
    mx::eval(mx::sum(strided, std::vector<int>{0, 1, 2}, false));
    mx::eval(mx::sum(empty, std::vector<int>{1}, false));
  }
  std::puts("100 sums of nothing returned");
  std::fflush(stdout);
  _exit(1);
}
