// An error that a stream stores while async_eval is about to end is thrown in place of the signal
// of an event: an array of another stream, though computed rightly, is then waited for forever.
//
// Exit status: 0 if the fault was seen, 1 if not.
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include "mlx/mlx.h"

namespace mx = mlx::core;
using namespace std::chrono_literals;

constexpr int ROUNDS = 100;

int main() {
  const mx::Stream fails = mx::default_stream(mx::Device::cpu);
  const mx::Stream works = mx::new_stream(mx::Device::cpu);
  const auto zeros = mx::zeros({200, 200});
  const auto one = mx::ones({128, 128});
  mx::eval(zeros, one);

  std::atomic<int> round = 0;
  std::thread([&round] {
    int last = -1;
    while (last != round) {
      last = round;
      std::this_thread::sleep_for(5s);
    }
    std::printf("round %d of %d: a sound array was not signaled within 5 s\n", last, ROUNDS);
    std::fflush(stdout);
    _exit(0);
  }).detach();

  while (++round <= ROUNDS) {
    // So long that async_eval, after it has queued what fails, waits for tasks of this stream.
    auto sound = one;
    for (int i = 0; i < 100; i++) {
      sound = mx::multiply(mx::matmul(sound, one, works), mx::array(1.0f / 128), works);
    }
    const auto failing = mx::linalg::inv(zeros, fails); // throws in a task
    try {
      mx::async_eval(sound, failing);
    } catch (const std::exception&) {
    }
    try {
      sound.wait();
    } catch (const std::exception&) {
    }
    try {
      mx::synchronize(fails);
    } catch (const std::exception&) {
    }
  }
  std::printf("%d rounds: every sound array was signaled\n", ROUNDS);
  std::fflush(stdout);
  _exit(1);
}
