// Whoever has the thread id of the first thread that used MLX is "the main thread", and ids are
// used again: a short thread takes that part after the first thread ended.
//
// Exit status: 0 if the fault was seen, 1 if not.
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "mlx/mlx.h"
#include "mlx/scheduler.h"

namespace mx = mlx::core;
using namespace std::chrono_literals;

/** Whether enqueue throws a stored error here, which MLX means for the main thread alone. */
bool is_main_to_mlx() {
  const mx::Stream stream = mx::default_stream(mx::Device::cpu);
  mx::scheduler::enqueue(stream, [] { throw std::runtime_error("a failing task"); });
  std::this_thread::sleep_for(20ms);
  try {
    mx::scheduler::enqueue(stream, [] {});
  } catch (const std::exception&) {
    return true;
  }
  return false;
}

int main() {
  std::thread([] {
    std::this_thread::sleep_for(10s);
    std::puts("did not end in 10 s");
    std::fflush(stdout);
    _exit(1);
  }).detach();

  std::thread::id first_id;
  std::thread first([&] {
    first_id = std::this_thread::get_id();
    mx::eval(mx::add(mx::array(1.0f), mx::array(1.0f)));
  });
  first.join();

  int same = 0, same_main = 0, other_main = 0;
  for (int i = 0; i < 10; i++) {
    std::thread later([&] {
      const bool same_id = std::this_thread::get_id() == first_id;
      const bool main = is_main_to_mlx();
      same += same_id;
      same_main += same_id && main;
      other_main += !same_id && main;
    });
    later.join();
  }
  std::printf(
      "of 10 later threads %d had the id of the first, and %d of these were taken for the main "
      "thread (of the others: %d); main itself: %s\n",
      same,
      same_main,
      other_main,
      is_main_to_mlx() ? "yes" : "no");
  std::fflush(stdout);
  _exit(same_main > 0 ? 0 : 1);
}
