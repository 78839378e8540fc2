#include "runtime/process.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/compile_impl.h"
#include "mlx/mlx.h"
#include "mlx/scheduler.h"
#include "mlx/version.h"
#include "runtime/batch.h"
#include "runtime/encode.h"
#include "runtime/encoder.h"
#include "runtime/failure.h"

namespace mlx_primitives {

namespace mx = mlx::core;

namespace {

using Clock = std::chrono::steady_clock;

/** The time that the end of the process waits for running work. */
constexpr auto patience = std::chrono::seconds(1);

/** The number of threads that can lease a CPU stream at the same time. */
constexpr int leases = 16;

std::atomic<int> inside{0};
std::atomic<bool> ending{false};
std::atomic<bool> forked{false}; // this process is a fork of a prepared process
std::atomic<bool> dropping{false};
bool guest = false; // set before the first `prepare`
thread_local int depth = 0;
thread_local int user_tasks = 0;
thread_local bool streams_ended = false;
thread_local bool over = false; // MLX's thread-local data is being destroyed

/**
 * Makes a parked thread MLX's main thread. MLX takes the first thread that uses MLX as its main
 * thread, and also any later thread to which the system gives the same id. On its main thread, MLX
 * may throw the error of an earlier task while it queues the next task. MLX then miscounts its
 * tasks or never signals an event, and a waiting thread hangs. The parked thread never ends and
 * never evaluates, so it never gets that error. Every other thread gets errors when it waits for
 * results.
 */
void park_main_thread() {
  struct Parking {
    std::mutex mutex;
    std::condition_variable changed;
    bool taken = false;
  };
  static auto& parking = *new Parking(); // never destroyed: the thread sleeps on it
  std::thread([] {
    mx::scheduler::scheduler();
    std::unique_lock lock(parking.mutex);
    parking.taken = true;
    parking.changed.notify_all();
    parking.changed.wait(lock, [] { return false; });
  }).detach();
  std::unique_lock lock(parking.mutex);
  parking.changed.wait(lock, [] { return parking.taken; });
}

/**
 * CPU streams that no thread uses. Any thread may lease one of these streams, but only one thread
 * at a time may use it.
 */
struct Spare {
  std::mutex mutex;
  std::vector<mx::Stream> streams;
};

Spare& spare() {
  static auto& spare = *new Spare(); // never destroyed: threads give streams back until the end
  return spare;
}

/**
 * Makes the streams of all leases in advance, because MLX reads its list of streams without a lock.
 */
void make_leases() {
  auto& known = spare();
  for (int i = 0; i < leases; ++i) {
    known.streams.push_back(mx::new_thread_unsafe_stream(mx::Device::cpu));
  }
}

/**
 * The lease of a default CPU stream by a thread. MLX never ends the system thread of a stream. So
 * when a thread ends, its stream goes to another thread. If more threads evaluate at once than
 * leases exist, MLX makes a permanent stream for each additional thread.
 */
class Lease {
 public:
  Lease() {
    // C++ destroys thread-local values in the reverse order of their construction. This constructor
    // makes all of MLX's thread-local values, before the lease itself is complete. So the lease
    // ends before any of them is destroyed.
    auto stream = take() ? *stream_ : mx::default_stream(mx::Device::cpu);
    mx::cpu::get_command_encoder(stream);
    construct_metal_encoders();
    construct_cuda_encoders();
    mx::detail::compile_cache();
    mx::random::KeySequence::default_();
    mx::array traced(true);
    traced.set_tracer(true);
    traced.is_tracer();
    Batch::prepare();
    prepare_plans();
  }
  /** Gives the thread a new default stream after its streams were ended. */
  void renew() {
    if (!stream_ && !take()) {
      mx::set_default_stream(mx::new_stream(mx::Device::cpu));
    }
  }
  ~Lease() {
    over = true;
    if (!stream_ || forked) {
      return;
    }
    try {
      // The thread of the stream returns the stream to `spare` after its earlier tasks.
      mx::scheduler::enqueue(*stream_, [stream = *stream_] {
        auto& known = spare();
        std::lock_guard lock(known.mutex);
        known.streams.push_back(stream);
      });
    } catch (const std::exception&) {
      // The system cannot start a thread for this stream, so no other thread will get the stream.
    }
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  bool take() {
    auto& known = spare();
    std::lock_guard lock(known.mutex);
    if (known.streams.empty()) {
      return false;
    }
    stream_ = known.streams.back();
    known.streams.pop_back();
    mx::set_default_stream(*stream_);
    return true;
  }

  std::optional<mx::Stream> stream_;
};

bool wait_until(Clock::time_point deadline, const auto& done) {
  while (!done()) {
    if (Clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

/** Whether every CPU stream becomes idle before the deadline. */
bool streams_rest(Clock::time_point deadline) {
  auto busy = std::make_shared<std::atomic<int>>(0);
  for (const auto& stream : mx::get_streams()) {
    if (stream.device == mx::Device::cpu) {
      ++*busy;
      mx::scheduler::enqueue(stream, [busy] { --*busy; });
    }
  }
  return wait_until(deadline, [&] { return *busy == 0; });
}

/**
 * Waits until the CPU streams are idle, and returns whether they are. MLX destroys its CPU
 * allocator when the process ends, although a stream may still return memory to it. With a cache
 * size of 0, memory that is returned later does not need the allocator.
 */
bool settle() {
  auto deadline = Clock::now() + patience;
  ending = true;
  if (forked) {
    return false; // the streams have no threads
  }
  if (user_tasks > 0 || depth > 0) {
    return false; // an evaluation waits for the code that called exit
  }
  if (!wait_until(deadline, [] { return inside == 0; })) {
    return false;
  }
  dropping = true;
  try {
    if (!streams_rest(deadline)) {
      return false;
    }
    for (const auto& stream : mx::get_streams()) {
      try {
        mx::scheduler::check_error(stream); // otherwise set_cache_limit throws it
      } catch (const std::exception&) {
        // Ignore the error, because no caller is left that could receive it.
      }
    }
    mx::set_cache_limit(0);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

#ifdef MLX_PRIMITIVES_HAS_ON_EXIT
/** If a stream does not become idle, ends the process before any global object is destroyed. */
void at_exit(int status, void*) {
  if (!settle()) {
    std::fflush(nullptr);
    _exit(status);
  }
}

void settle_at_exit() {
  on_exit(at_exit, nullptr);
}
#else
void at_exit() {
  settle();
}

void settle_at_exit() {
  std::atexit(at_exit);
}
#endif

void prepare_process() {
  if (!guest) {
    try {
      park_main_thread();
    } catch (const std::system_error&) {
      // The system refuses to start threads, and thus also the threads of MLX's streams. So each op
      // will return an error.
    }
    make_leases();
  }
  // During a fork, another thread may hold a lock. The child has no copy of that thread, so nothing
  // would release the lock there. Therefore the fork waits for the locks.
  pthread_atfork(hold_failures, release_failures, [] {
    release_failures();
    forked = true;
  });
  // These steps are for the CPU only: MLX never destroys its allocator for a GPU.
  if (!mx::is_available(mx::Device::gpu)) {
    mx::get_active_memory(); // creates the allocator: exit handlers run in reverse order
    settle_at_exit();
  }
}

} // namespace

std::string reason(const std::exception& error) {
  auto* refused = dynamic_cast<const std::system_error*>(&error);
  if (refused && refused->code() == std::errc::resource_unavailable_try_again) {
    return "the system refuses this process another thread (" + std::string(error.what()) +
           "): raise the limit of processes (ulimit -u, or the container's), or end other programs";
  }
  return error.what();
}

const char* refusal() {
  if (over) {
    return "[thread] this thread is ending, and its streams are gone: compute before its "
           "thread-local values are dropped";
  }
  if (ending) {
    return "[process] the process is ending: compute before it calls exit or returns from main";
  }
  if (forked) {
    return "[fork] this process is the child of a fork, without the threads that compute: fork "
           "before the first op, or start a program by exec";
  }
  return nullptr;
}

void require_version() {
  auto built = std::to_string(MLX_VERSION_MAJOR) + "." + std::to_string(MLX_VERSION_MINOR) + "." +
               std::to_string(MLX_VERSION_PATCH);
  std::string loaded = mx::version();
  if (loaded.substr(0, loaded.find(".dev")) != built) {
    throw std::runtime_error(
        "built with the headers of MLX " + built + " but loaded libmlx " + loaded +
        ": build again, or set the rpath to the MLX it was built with");
  }
}

void be_guest() {
  guest = true;
}

void prepare() {
  if (auto* why = refusal()) {
    throw std::runtime_error(why);
  }
  static const bool prepared = (require_version(), prepare_process(), true);
  (void)prepared;
  if (guest) {
    return;
  }
  thread_local Lease lease;
  if (streams_ended) {
    lease.renew();
    if (mx::is_available(mx::Device::gpu)) {
      mx::set_default_stream(mx::new_stream(mx::Device::gpu));
    }
    streams_ended = false;
  }
}

void end_streams() {
  prepare();
  mx::clear_streams();
  streams_ended = true;
}

Inside::Inside() {
  if (depth == 0) {
    ++inside;
    if (auto* why = refusal()) {
      --inside;
      throw std::runtime_error(why);
    }
  }
  ++depth;
}

Inside::~Inside() {
  if (--depth == 0) {
    --inside;
  }
}

InUserTask::InUserTask() {
  ++user_tasks;
}

InUserTask::~InUserTask() {
  --user_tasks;
}

bool abandoned() {
  return dropping.load(std::memory_order_relaxed);
}

} // namespace mlx_primitives
