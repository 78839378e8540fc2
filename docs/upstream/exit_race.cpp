// The CPU allocator is destroyed at exit while streams still return buffers to its cache, and the
// heap is corrupted. Each child evaluates something without waiting for it and ends as by a return
// from main; others synchronize first.
//
// Exit status: 0 if the fault was seen, 1 if not.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "mlx/mlx.h"

namespace mx = mlx::core;
using namespace std::chrono_literals;

struct Count {
  int children = 0;
  int crashed = 0;
};

/** As many buffers of up to 256 bytes, each of an evaluated array. */
std::vector<mx::array> buffers(int count) {
  static const float data[64] = {};
  std::vector<mx::array> all;
  for (int i = 0; i < count; i++) {
    all.push_back(mx::array(data, {1 + i % 64}));
  }
  return all;
}

void evaluate(bool waits) {
  buffers(20000); // dropped into the cache, which takes the destructor a while to empty
  auto x = mx::ones({100, 100});
  for (int i = 0; i < 40; i++) {
    // Once the stream has done this, it returns 100 buffers to the cache.
    const auto sum = mx::sum(mx::concatenate(buffers(100)));
    x = mx::add(mx::matmul(x, x), sum);
  }
  mx::async_eval(x);
  if (waits) {
    mx::synchronize();
  }
}

Count run_children(bool waits) {
  Count count;
  const auto end = std::chrono::steady_clock::now() + 10s;
  while (count.children < 40 && std::chrono::steady_clock::now() < end) {
    const pid_t pid = fork(); // this process never uses MLX
    if (pid == 0) {
      alarm(5);
      if (!std::freopen("/dev/null", "w", stderr)) { // malloc reports the corruption there
        _exit(2);
      }
      evaluate(waits);
      std::exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    count.children++;
    count.crashed += WIFSIGNALED(status) && WTERMSIG(status) != SIGALRM;
  }
  return count;
}

int main() {
  const Count returned = run_children(false);
  const Count synchronized = run_children(true);
  std::printf(
      "crashed at exit: %d of %d processes that did not wait, %d of %d that synchronized first\n",
      returned.crashed,
      returned.children,
      synchronized.crashed,
      synchronized.children);
  return returned.crashed > 0 ? 0 : 1;
}
