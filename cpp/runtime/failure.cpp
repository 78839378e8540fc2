#include "runtime/failure.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "mlx/primitives.h"
#include "runtime/node.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

namespace {

std::atomic<size_t> fallible_primitives{0};
thread_local Tracked* tracked = nullptr;

using Records = std::vector<std::shared_ptr<Record>>;

bool ended_well(Record& record) {
  return record.progress()->over() && !record.failure();
}

/** The arrays whose computation is unfinished or has failed, by `array::id`. */
struct Known {
  std::mutex mutex;
  std::unordered_map<uintptr_t, Tracked::Depending> entries; // weak pointers keep the id from reuse
  std::atomic<bool> any{false};

  void remember(const Tracked::Depending& array) {
    if (auto held = array.node.lock()) {
      entries.insert_or_assign(reinterpret_cast<uintptr_t>(held.get()), array);
      any = true;
    }
  }

  /** Removes the entries of arrays that no longer exist or that were computed successfully. */
  void clean() {
    std::erase_if(entries, [](const auto& item) {
      const auto& array = item.second;
      return array.node.expired() || ended_well(*array.record);
    });
    any = !entries.empty();
  }

  std::shared_ptr<Record> record_of(const mx::array& array) {
    auto found = entries.find(array.id());
    return found == entries.end() ? nullptr : found->second.record;
  }
};

Known& known() {
  static auto& known = *new Known(); // never destroyed: tasks may run while the process ends
  return known;
}

bool can_fail(const mx::Primitive& primitive) {
  return dynamic_cast<const Fallible*>(&primitive) ||
         (simulating() && dynamic_cast<const FusedPrimitive*>(&primitive));
}

/** Walks from arrays to the inputs that they depend on, and makes a record for each. */
class Walk {
 public:
  std::vector<Tracked::Depending> depending;
  std::unordered_map<uintptr_t, std::shared_ptr<Report>> reports;

  /** Returns the record of an array, or null if the array depends on no task that can fail. */
  std::shared_ptr<Record> visit(const mx::array& root) {
    enter(root);
    while (!path_.empty()) {
      auto& at = path_.back();
      const auto& inputs = at.array->inputs();
      if (at.next == inputs.size()) {
        leave(at);
        path_.pop_back();
        continue;
      }
      const auto& input = inputs[at.next];
      if (auto seen = records_.find(input.id()); seen != records_.end()) {
        ++at.next;
        const auto& record = seen->second;
        if (record && std::find(at.read.begin(), at.read.end(), record) == at.read.end()) {
          at.read.push_back(record);
        }
      } else {
        enter(input);
      }
    }
    return records_.at(root.id());
  }

 private:
  struct At {
    const mx::array* array;
    size_t next = 0; // index of the next input
    Records read{};
  };

  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  std::vector<At> path_;
  std::unordered_map<uintptr_t, std::shared_ptr<Record>> records_;

  void enter(const mx::array& array) {
    if (records_.contains(array.id())) {
      return;
    }
    if (array.status() == mx::array::Status::unscheduled && array.has_primitive()) {
      path_.push_back({&array});
      return;
    }
    auto record = known().record_of(array);
    if (record) {
      if (auto why = record->failure()) {
        throw std::runtime_error(*why);
      }
      progress_->read(record->progress());
    }
    records_[array.id()] = record;
  }

  void leave(At& at) {
    const auto& array = *at.array;
    bool fallible = can_fail(array.primitive());
    std::shared_ptr<Record> record;
    if (fallible || at.read.size() > 1) {
      record = std::make_shared<Record>(progress_);
      for (const auto& read : at.read) {
        record->read(*read);
      }
    } else if (at.read.size() == 1) {
      record = at.read.front();
    }
    auto reported = fallible ? std::make_shared<Report>(record) : nullptr;
    auto assign = [&](const mx::array& output) {
      records_[output.id()] = record;
      if (record) {
        depending.push_back({node_of(output), record});
      }
      if (reported) {
        reports[output.id()] = reported;
      }
    };
    assign(array);
    for (const auto& sibling : array.siblings()) {
      assign(sibling);
    }
  }
};

} // namespace

void Progress::read(std::shared_ptr<Progress> other) {
  std::lock_guard lock(mutex_);
  if (std::find(read_.begin(), read_.end(), other) == read_.end()) {
    read_.push_back(std::move(other));
  }
}

bool Progress::over() {
  std::lock_guard lock(mutex_);
  // An evaluation is over when all of its tasks have run and all evaluations that it read from are
  // over. It then stays over, so the list of the other evaluations can be cleared.
  over_ = over_ || (tasks_ == 0 && std::all_of(read_.begin(), read_.end(), [](auto& read) {
                      return read->over();
                    }));
  if (over_) {
    read_.clear();
  }
  return over_;
}

void Record::read(Record& other) {
  std::optional<std::string> why;
  {
    std::lock_guard lock(other.mutex_);
    why = other.why_;
    if (!why) {
      other.readers_.push_back(weak_from_this());
    }
  }
  if (why) {
    fail(*why);
  }
}

void Record::fail(const std::string& why) {
  std::vector<std::shared_ptr<Record>> left{shared_from_this()};
  while (!left.empty()) {
    auto record = std::move(left.back());
    left.pop_back();
    std::lock_guard lock(record->mutex_);
    if (record->why_) {
      continue;
    }
    record->why_ = why;
    for (const auto& reader : std::exchange(record->readers_, {})) {
      if (auto held = reader.lock()) {
        left.push_back(std::move(held));
      }
    }
  }
}

std::optional<std::string> Record::failure() {
  std::lock_guard lock(mutex_);
  return why_;
}

std::shared_ptr<Report> report(uintptr_t output) {
  if (!tracked) {
    return nullptr;
  }
  auto found = tracked->reports_.find(output);
  return found == tracked->reports_.end() ? nullptr : found->second;
}

Fallible::Fallible() {
  ++fallible_primitives;
}

Fallible::~Fallible() {
  --fallible_primitives;
}

Tracked::Tracked(const std::vector<mx::array>& arrays) : outer_(tracked) {
  auto& all = known();
  if (all.any || fallible_primitives > 0 || simulating()) {
    std::lock_guard lock(all.mutex);
    all.clean();
    Walk walk;
    for (const auto& array : arrays) {
      if (auto record = walk.visit(array)) {
        asked_for_.push_back(std::move(record));
      }
    }
    depending_ = std::move(walk.depending);
    reports_ = std::move(walk.reports);
  }
  tracked = this;
}

Tracked::~Tracked() {
  tracked = outer_;
}

void Tracked::remember() {
  reports_.clear(); // arrays without a task need no report
  std::erase_if(depending_, [](const auto& array) { return ended_well(*array.record); });
  if (depending_.empty()) {
    return;
  }
  auto& all = known();
  std::lock_guard lock(all.mutex);
  for (const auto& array : depending_) {
    all.remember(array);
  }
}

void Tracked::check() const {
  for (const auto& record : asked_for_) {
    if (auto why = record->failure()) {
      throw std::runtime_error(*why);
    }
  }
}

void hold_failures() {
  known().mutex.lock();
}

void release_failures() {
  known().mutex.unlock();
}

void remember_failure(const std::vector<mx::array>& arrays, const std::string& why) {
  auto record = std::make_shared<Record>(std::make_shared<Progress>());
  record->fail(why);
  auto& all = known();
  std::lock_guard lock(all.mutex);
  for (const auto& array : arrays) {
    all.remember({node_of(array), record});
  }
}

} // namespace mlx_primitives
