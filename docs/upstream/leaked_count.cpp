// The error of an earlier task is thrown after a new task was counted and before it is queued: the
// scheduler's count of active tasks stays too high. After about ten of these an evaluation waits
// forever for one of the tasks to end.
//
// Exit status: 0 if the fault was seen, 1 if not.
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include "mlx/mlx.h"
#include "mlx/scheduler.h"

namespace mx = mlx::core;
using namespace std::chrono_literals;

constexpr int ROUNDS = 300;

int main() {
  const auto zeros = mx::zeros({2, 2});
  const auto ones = mx::ones({2, 2});
  mx::eval(zeros, ones);

  std::atomic<int> round = 0;
  std::thread([&round] {
    int last = -1;
    while (last != round) {
      last = round;
      std::this_thread::sleep_for(4s);
    }
    std::printf(
        "round %d of %d: %d active tasks while nothing runs, and no end of an addition in 4 s\n",
        last,
        ROUNDS,
        mx::scheduler::n_active_tasks());
    std::fflush(stdout);
    _exit(0);
  }).detach();

  while (++round <= ROUNDS) {
    try {
      mx::async_eval(mx::linalg::inv(zeros, mx::Device::cpu)); // throws in a task
    } catch (const std::exception&) {
    }
    std::this_thread::sleep_for(2ms);
    try {
      mx::eval(mx::add(ones, ones)); // its first enqueue throws the error that the stream stored
    } catch (const std::exception&) {
    }
  }
  std::this_thread::sleep_for(100ms);
  const int left = mx::scheduler::n_active_tasks();
  std::printf("%d rounds: %d active tasks while nothing runs\n", ROUNDS, left);
  std::fflush(stdout);
  _exit(left > 0 ? 0 : 1);
}
