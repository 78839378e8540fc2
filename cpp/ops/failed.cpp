#include "ops/failed.h"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace mlx_primitives {

namespace {

struct Failure {
  std::weak_ptr<Memory> memory; // gone if other memory has its place by now
  std::string why;
};

std::atomic<bool> any{false};

struct Failures {
  std::mutex mutex;
  std::unordered_map<const Memory*, Failure> by_memory;
};

Failures& failures() {
  // Never destroyed: tasks may still run while the process ends.
  static auto* failures = new Failures();
  return *failures;
}

/** Forgets memory that is gone. */
bool any_left() {
  if (!any) {
    return false;
  }
  auto& known = failures();
  std::lock_guard lock(known.mutex);
  std::erase_if(known.by_memory, [](const auto& entry) { return entry.second.memory.expired(); });
  any = !known.by_memory.empty();
  return any;
}

} // namespace

void remember_failure(const std::weak_ptr<Memory>& memory, const std::string& why) {
  auto held = memory.lock();
  if (!held) {
    return;
  }
  auto& known = failures();
  std::lock_guard lock(known.mutex);
  auto& failure = known.by_memory[held.get()];
  if (failure.memory.expired()) { // else the first reason stays
    failure = {memory, why};
  }
  any = true;
}

std::string failure_of(const Memory* memory) {
  if (!any) {
    return {};
  }
  auto& known = failures();
  std::lock_guard lock(known.mutex);
  auto found = known.by_memory.find(memory);
  bool failed = found != known.by_memory.end() && !found->second.memory.expired();
  return failed ? found->second.why : std::string();
}

const mx::array* find_failed(const std::vector<mx::array>& arrays) {
  if (!any_left()) {
    return nullptr;
  }
  std::vector<const mx::array*> left;
  std::unordered_set<uintptr_t> seen;
  auto visit = [&](const std::vector<mx::array>& found) {
    for (const auto& array : found) {
      if (seen.insert(array.id()).second) {
        left.push_back(&array);
      }
    }
  };
  visit(arrays);
  while (!left.empty()) {
    const auto* array = left.back();
    left.pop_back();
    if (!failure_of(array->data_shared_ptr().get()).empty()) {
      return array;
    }
    if (array->status() == mx::array::Status::unscheduled) {
      visit(array->inputs());
    }
  }
  return nullptr;
}

} // namespace mlx_primitives
