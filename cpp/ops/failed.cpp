#include "ops/failed.h"

#include <atomic>
#include <map>
#include <mutex>
#include <unordered_set>

namespace mlx_primitives {

namespace {

using ByOwner = std::map<Memory, std::string, std::owner_less<>>;

std::atomic<bool> any{false};

struct Failures {
  std::mutex mutex;
  ByOwner why;
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
  auto& all = failures();
  std::lock_guard lock(all.mutex);
  std::erase_if(all.why, [](const auto& entry) { return entry.first.expired(); });
  any = !all.why.empty();
  return any;
}

} // namespace

void remember_failure(const Memory& memory, const std::string& why) {
  auto& all = failures();
  std::lock_guard lock(all.mutex);
  all.why.emplace(memory, why); // the first reason stays
  any = true;
}

std::string failure_of(const Memory& memory) {
  if (!any) {
    return {};
  }
  auto& all = failures();
  std::lock_guard lock(all.mutex);
  auto found = all.why.find(memory);
  return found == all.why.end() ? std::string() : found->second;
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
    if (!failure_of(array->data_shared_ptr()).empty()) {
      return array;
    }
    if (array->status() == mx::array::Status::unscheduled) {
      visit(array->inputs());
    }
  }
  return nullptr;
}

} // namespace mlx_primitives
