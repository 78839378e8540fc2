#include "runtime/batch.h"

#include <algorithm>
#include <utility>

#include "mlx/backend/cpu/encoder.h"
#include "runtime/encoder.h"
#include "runtime/mlx_patches.h"
#include "runtime/node.h"
#include "runtime/process.h"

namespace mlx_primitives {

namespace {

/**
 * The number of calls in the first batch, and in later batches. The first batch is small, so that
 * the stream's thread begins early. Later batches are larger, so that the thread rarely runs out of
 * calls. Without calls, the thread sleeps, and waking it takes time.
 */
constexpr size_t FIRST = 8;
constexpr size_t MOST = 32;

/** If a stream has more unfinished tasks than this, the thread that queues tasks waits. */
constexpr int MOST_TASKS = 32;

thread_local Batch* innermost = nullptr;

} // namespace

Batch::Batch(mx::Stream stream)
    : stream_(stream), given_(given_to(stream)), full_(FIRST), outer_(innermost) {
  std::erase_if(given_.uses, [](const auto& item) { return item.second.expired(); });
  innermost = this;
}

Batch::~Batch() {
  innermost = outer_;
}

void Batch::prepare() {
  all_given();
}

Batch* Batch::current() {
  return innermost;
}

void Batch::add(std::function<void()> call) {
  items_.push_back({std::move(call)});
  ++calls_;
}

void Batch::keep(const mx::array& array) {
  if (items_.empty()) {
    items_.push_back({});
  }
  const auto& memory = array.data_shared_ptr();
  std::shared_ptr<void> kept = memory;
  if (auto found = given_.uses.find(memory.get()); found != given_.uses.end()) {
    auto use = found->second.lock();
    if (!use) {
      found->second = use = std::make_shared<Use>(Use{memory});
    }
    use->handed = given_.flushes;
    kept = std::move(use);
  }
  items_.back().memory.push_back(std::move(kept));
}

void Batch::updated(const mx::array& state) {
  given_.uses.try_emplace(state.data_shared_ptr().get());
}

bool Batch::takes_over(const mx::array& state) {
  const auto& memory = state.data_shared_ptr();
  // Reading the use count first is safe: the stream's thread may drop references at any time, but
  // never adds one.
  bool once = memory.use_count() == 2 && is_owned(*memory);
  auto found = given_.uses.find(memory.get());
  auto use = once && found != given_.uses.end() ? found->second.lock() : nullptr;
  if (!use || node_of(state).use_count() != 2) { // one holder is the temporary result
    return false;
  }
  if (is_cuda(stream_) && use->handed == given_.flushes) {
    items_.push_back({}); // hands the graph over even if another batch collected it
    flush();
  }
  return true;
}

void Batch::flush() {
  if (items_.empty()) {
    return;
  }
  calls_ = 0;
  ++given_.flushes;
  auto items = std::make_shared<std::vector<Item>>(std::exchange(items_, {}));
  ++*given_.tasks;
  auto task = [items = std::move(items), tasks = given_.tasks] {
    for (auto& item : *items) {
      if (item.call && !abandoned()) {
        item.call();
      }
      item = {}; // the memory can be used again
    }
    --*tasks;
    tasks->notify_all();
  };
  if (is_cuda(stream_)) {
    hand_over_graph(stream_, std::move(task));
  } else {
    mx::cpu::get_command_encoder(stream_).dispatch(std::move(task));
  }
}

std::unordered_map<int, Batch::Given>& Batch::all_given() {
  thread_local std::unordered_map<int, Given> all;
  return all;
}

Batch::Given& Batch::given_to(mx::Stream stream) {
  return all_given()[stream.index];
}

void Batch::wait_for_tasks(mx::Stream stream) {
  auto& tasks = *given_to(stream).tasks;
  for (int left = tasks; left > MOST_TASKS; left = tasks) {
    tasks.wait(left);
  }
}

void Batch::flush_calls() {
  if (calls_ > 0) {
    flush();
  }
}

void Batch::flush_if_full() {
  if (is_cuda(stream_)) {
    if (is_graph_full(stream_)) {
      flush();
    }
  } else if (items_.size() >= full_) {
    flush();
    full_ = std::min(2 * full_, MOST);
  }
}

void queue(mx::Stream stream, std::function<void()> call) {
  if (auto* batch = Batch::current()) {
    return batch->add(std::move(call));
  }
  mx::cpu::get_command_encoder(stream).dispatch([call = std::move(call)] {
    if (!abandoned()) {
      call();
    }
  });
}

} // namespace mlx_primitives
