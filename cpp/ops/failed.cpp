#include "ops/failed.h"

#include <atomic>
#include <map>
#include <mutex>

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

} // namespace

void remember_failure(const Memory& memory, const std::string& why) {
  auto& all = failures();
  std::lock_guard lock(all.mutex);
  std::erase_if(all.why, [](const auto& entry) { return entry.first.expired(); });
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

void check_failure(const mx::array& array) {
  if (auto why = failure_of(array.data_shared_ptr()); !why.empty()) {
    throw std::runtime_error(why);
  }
}

} // namespace mlx_primitives
