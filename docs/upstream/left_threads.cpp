// A thread that evaluates one op leaves a stream's thread behind, for as long as the process lives.
//
// Exit status: 0 if the fault was seen, 1 if not.
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <thread>

#include "mlx/mlx.h"

namespace mx = mlx::core;
using namespace std::chrono_literals;

long threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

int main() {
  std::thread([] {
    std::this_thread::sleep_for(20s);
    std::puts("did not end in 20 s");
    std::fflush(stdout);
    _exit(1);
  }).detach();

  mx::eval(mx::add(mx::array(1.0f), mx::array(1.0f)));
  const long before = threads_of_this_process();
  for (int i = 0; i < 200; i++) {
    std::thread([] {
      mx::eval(mx::add(mx::array(1.0f), mx::array(1.0f)));
      mx::clear_streams();
    }).join();
  }
  const long after = threads_of_this_process();
  std::printf("%ld threads before 200 short ones, %ld after\n", before, after);
  std::fflush(stdout);
  _exit(after - before > 100 ? 0 : 1);
}
