// The error of an array that nobody reads is thrown by the next evaluation on its stream, which
// has nothing to do with it.
//
// Exit status: 0 if the fault was seen, 1 if not.
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include "mlx/mlx.h"

namespace mx = mlx::core;
using namespace std::chrono_literals;

constexpr int ROUNDS = 20; // fewer than make the leaked count of active tasks a hang

/** How many sound evaluations throw, each after a failing one that was dropped. */
int blamed() {
  const auto zeros = mx::zeros({200, 200});
  mx::eval(zeros);
  int count = 0;
  for (int i = 0; i < ROUNDS; i++) {
    try {
      mx::async_eval(mx::linalg::inv(zeros, mx::Device::cpu)); // throws in a task
    } catch (const std::exception&) {
      continue; // thrown by the evaluation that failed, as it should be
    }
    std::this_thread::sleep_for(20ms);
    try {
      mx::eval(mx::add(mx::array(1.0f), mx::array(1.0f)));
    } catch (const std::exception&) {
      count++;
    }
  }
  return count;
}

int main() {
  std::thread([] {
    std::this_thread::sleep_for(20s);
    std::puts("did not end in 20 s");
    std::fflush(stdout);
    _exit(1);
  }).detach();

  const int first = blamed(); // MLX's main thread is the first one that uses it
  int second = 0;
  std::thread([&second] { second = blamed(); }).join();
  std::printf(
      "of %d sound evaluations %d threw on MLX's main thread, and %d on another\n",
      ROUNDS,
      first,
      second);
  std::fflush(stdout);
  _exit(first + second > 0 ? 0 : 1);
}
