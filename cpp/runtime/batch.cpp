#include "runtime/batch.h"

#include <algorithm>
#include <utility>

#include "mlx/backend/cpu/encoder.h"
#include "runtime/process.h"

namespace mlx_primitives {

namespace {

/**
 * The first batch is small, so that the stream's thread begins early. Later ones are larger: it
 * then rarely runs out of calls, after which it would have to be woken.
 */
constexpr size_t FIRST = 8;
constexpr size_t MOST = 32;

thread_local Batch* innermost = nullptr;

} // namespace

Batch::Batch(mx::Stream stream) : stream_(stream), full_(FIRST), outer_(innermost) {
  innermost = this;
}

Batch::~Batch() {
  innermost = outer_;
}

Batch* Batch::current() {
  return innermost;
}

void Batch::add(std::function<void()> call) {
  items_.push_back({std::move(call)});
  ++calls_;
}

void Batch::keep(std::vector<std::shared_ptr<void>> memory) {
  if (items_.empty()) {
    items_.push_back({});
  }
  auto& kept = items_.back().memory;
  kept.insert(
      kept.end(),
      std::make_move_iterator(memory.begin()),
      std::make_move_iterator(memory.end()));
}

void Batch::flush() {
  if (items_.empty()) {
    return;
  }
  calls_ = 0;
  auto items = std::make_shared<std::vector<Item>>(std::exchange(items_, {}));
  mx::cpu::get_command_encoder(stream_).dispatch([items = std::move(items)] {
    for (auto& item : *items) {
      if (item.call && !abandoned()) {
        item.call();
      }
      item = {}; // the memory can be used again
    }
  });
}

void Batch::flush_calls() {
  if (calls_ > 0) {
    flush();
  }
}

void Batch::flush_if_full() {
  if (items_.size() >= full_) {
    flush();
    full_ = std::min(2 * full_, MOST);
  }
}

} // namespace mlx_primitives
