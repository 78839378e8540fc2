// Runs cpp/runtime/ under sanitizers. Evaluations fail on several threads at once, and the process
// ends in every possible way while work is running. scripts/sanitize.sh builds this program and
// runs each role, which is the argument of the program.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "mlx/scheduler.h"
#include "runtime/evaluate.h"
#include "runtime/failure.h"
#include "runtime/kernels.h"
#include "runtime/process.h"

namespace mx = mlx::core;
using namespace mlx_primitives;

namespace {

void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "not so: %s\n", what);
    std::_Exit(1);
  }
}

/** Computes y = x, or fails. */
class Shaky : public mx::UnaryPrimitive, public Fallible {
 public:
  Shaky(mx::Stream stream, bool fails) : UnaryPrimitive(stream), fails_(fails) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    auto* from = inputs[0].data<float>();
    auto* to = out.data<float>();
    size_t size = out.size();
    queue(
        stream(),
        out.id(),
        [fails = fails_, from, to, size] {
          if (fails) {
            throw std::runtime_error("on purpose");
          }
          std::copy_n(from, size, to);
        },
        [to, size] { std::fill_n(to, size, 0.0f); });
  }
  void eval_gpu(const std::vector<mx::array>&, mx::array&) override {
    throw std::runtime_error("there is no GPU");
  }
  const char* name() const override {
    return "Shaky";
  }

 private:
  bool fails_;
};

mx::array shaky(const mx::array& x, bool fails) {
  auto stream = mx::default_stream(mx::Device::cpu);
  return mx::array(x.shape(), x.dtype(), std::make_shared<Shaky>(stream, fails), {x});
}

bool fails(const mx::array& array) {
  try {
    evaluate({array});
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

mx::array long_graph(int ops) {
  auto y = mx::ones({64, 64});
  for (int i = 0; i < ops; ++i) {
    y = mx::tanh(mx::add(mx::multiply(y, mx::array(1.01f)), mx::sum(y, 0)));
  }
  return y;
}

/**
 * Failures that a thread waits for, failures that no thread waits for, and successful results in
 * between.
 */
void fail_and_go_on(int rounds) {
  prepare();
  auto x = mx::ones({16});
  evaluate({x});
  for (int i = 0; i < rounds; ++i) {
    auto bad = shaky(x, true);
    auto after = mx::add(bad, x);
    require(fails(after) && fails(after) && fails(bad), "what failed stays failed");
    auto held = mx::add(shaky(x, true), x);
    auto later = mx::exp(held);
    evaluate_async({later});
    auto fine = shaky(mx::add(x, x), false);
    require(!fails(fine) && fine.data<float>()[3] == 2, "others are not told of it");
    require(fails(mx::add(held, x)) && fails(later) && fails(held), "dependents get the failure");
    auto beside = shaky(x, false);
    require(fails(mx::add(shaky(x, true), shaky(x, false))), "one of two is enough");
    evaluate_async({mx::add(shaky(x, true), x), mx::exp(beside)});
    require(!fails(beside), "arrays of the same evaluation are fine");
    evaluate_async({mx::add(shaky(x, i % 2 == 0), x)});
  }
}

void run(const std::string& role) {
  if (role == "failures") {
    fail_and_go_on(200);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back(fail_and_go_on, 200);
    }
    for (auto& thread : threads) {
      thread.join();
    }
    evaluate({long_graph(50)});
    mlx_primitives::synchronize(mx::default_stream(mx::Device::cpu));
  } else if (role == "threads") {
    for (int i = 0; i < 300; ++i) {
      std::thread(fail_and_go_on, 1).join();
    }
  } else if (role == "diamonds") {
    // Each op uses the one before it twice. So the number of paths through the graph is
    // exponential.
    prepare();
    auto y = mx::ones({16});
    for (int i = 0; i < 300; ++i) {
      y = shaky(mx::add(shaky(y, false), mx::multiply(y, mx::array(0.5f))), false);
    }
    require(!fails(y), "a deep graph is computed");
    auto bad = shaky(y, true);
    for (int i = 0; i < 300; ++i) {
      bad = shaky(mx::add(shaky(bad, false), bad), false);
    }
    evaluate_async({bad});
    require(fails(mx::add(bad, y)) && fails(bad), "a deep graph fails");
  } else if (role == "return") {
    prepare();
    evaluate_async({long_graph(400)});
  } else if (role == "exit") {
    prepare();
    evaluate_async({long_graph(400)});
    std::exit(0);
  } else if (role == "busy") {
    prepare();
    static std::atomic<bool> started{false};
    std::thread([] {
      try {
        for (;;) {
          prepare();
          evaluate({long_graph(20)});
          started = true;
        }
      } catch (const std::exception&) {
        // An op failed because the process is ending.
      }
    }).detach();
    while (!started) {
      std::this_thread::yield();
    }
  } else if (role == "planted race") {
    // Tasks of two streams race here on purpose. The sanitizer must report it.
    static int count = 0;
    auto task = [] { ++count; };
    prepare();
    auto a = mx::new_stream(mx::Device::cpu);
    auto b = mx::new_stream(mx::Device::cpu);
    for (int i = 0; i < 1000; ++i) {
      queue(a, 0, task);
      queue(b, 0, task);
    }
    mlx_primitives::synchronize(a);
    mlx_primitives::synchronize(b);
  } else if (role == "planted overflow") {
    prepare();
    auto stream = mx::new_stream(mx::Device::cpu);
    auto memory = std::make_shared<std::vector<int>>(4);
    queue(stream, 0, [data = memory->data(), memory] { data[4] = 1; });
    mlx_primitives::synchronize(stream);
  } else {
    require(false, "a role: failures, threads, diamonds, return, exit or busy");
  }
}

} // namespace

// Replaces the kernel, which is in Rust. No role calls it, because no role copies a strided array.
void mlx_primitives::cpu::mlxp_cpu_copy(
    Bytes, uint8_t*, const int32_t*, const int64_t*, size_t, size_t) {
  std::abort();
}

int main(int argc, char** argv) {
  require(argc == 2, "one role");
  run(argv[1]);
  std::printf("%s: done\n", argv[1]);
  return 0;
}
