#include "runtime/failure.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

#include "mlx/primitives.h"
#include "ops/common.h"

namespace mlx_primitives {

namespace {

/**
 * Lets `node_of` read the handle of an array's node, which is private: MLX has no weak reference to
 * a node, and a strong one would keep the node's memory from being reused during the evaluation. An
 * explicit instantiation may name private members.
 */
template <auto Member>
struct NodeAccess {
  friend std::shared_ptr<const void> node_of(const mx::array& array) {
    return array.*Member;
  }
};
std::shared_ptr<const void> node_of(const mx::array& array);
template struct NodeAccess<&mx::array::array_desc_>;

std::atomic<size_t> fallible_primitives{0};
thread_local Tracked* tracked = nullptr;

/** Arrays that an evaluation computed which is not over or has failed, by `array::id`. */
struct Known {
  struct Entry {
    std::weak_ptr<const void> node; // keeps the id from being used again
    std::shared_ptr<Record> record;
  };

  std::mutex mutex;
  std::unordered_map<uintptr_t, Entry> entries;
  std::atomic<bool> any{false};

  void remember(const std::weak_ptr<const void>& node, const std::shared_ptr<Record>& record) {
    if (auto held = node.lock()) {
      entries.insert_or_assign(reinterpret_cast<uintptr_t>(held.get()), Entry{node, record});
      any = true;
    }
  }

  /** Forgets arrays that are gone, and those of evaluations that ended well. */
  void clean() {
    std::erase_if(entries, [](const auto& item) {
      const auto& entry = item.second;
      return entry.node.expired() || (entry.record->over() && !entry.record->failure());
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

/** Walks from arrays to what they are to be computed from, and finds what depends on tasks that can
 * fail. */
class Walk {
 public:
  std::vector<std::weak_ptr<const void>> depending;
  std::vector<std::shared_ptr<Record>> read;

  void visit(const mx::array& root) {
    enter(root);
    while (!path_.empty()) {
      auto& at = path_.back();
      const auto& inputs = at.array->inputs();
      if (at.next < inputs.size()) {
        const auto& input = inputs[at.next++];
        if (auto seen = depends_.find(input.id()); seen != depends_.end()) {
          at.depends = at.depends || seen->second;
        } else {
          enter(input);
        }
        continue;
      }
      bool depends = at.depends;
      leave(*at.array, depends);
      path_.pop_back();
      if (!path_.empty()) {
        path_.back().depends = path_.back().depends || depends;
      }
    }
  }

 private:
  struct At {
    const mx::array* array;
    size_t next;
    bool depends;
  };

  std::vector<At> path_;
  std::unordered_map<uintptr_t, bool> depends_;

  void enter(const mx::array& array) {
    if (array.status() == mx::array::Status::unscheduled && array.has_primitive()) {
      path_.push_back({&array, 0, can_fail(array.primitive())});
      return;
    }
    auto record = known().record_of(array);
    if (record) {
      if (auto why = record->failure()) {
        throw std::runtime_error(*why);
      }
      if (std::find(read.begin(), read.end(), record) == read.end()) {
        read.push_back(record);
      }
    }
    path_.push_back({&array, array.inputs().size(), record != nullptr});
  }

  void leave(const mx::array& array, bool depends) {
    depends_[array.id()] = depends;
    if (depends) {
      depending.push_back(node_of(array));
    }
    for (const auto& sibling : array.siblings()) {
      if (depends_.emplace(sibling.id(), depends).second && depends) {
        depending.push_back(node_of(sibling));
      }
    }
  }
};

} // namespace

void Record::fail(const std::string& why) {
  std::lock_guard lock(mutex_);
  if (!why_) {
    why_ = why;
  }
}

std::optional<std::string> Record::failure() {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < read_.size() && !why_; ++i) {
    why_ = read_[i]->failure();
  }
  if (why_) {
    read_.clear();
  }
  return why_;
}

bool Record::over() {
  std::lock_guard lock(mutex_);
  // What ended well need not be asked again: else a chain of evaluations would never be freed.
  std::erase_if(read_, [](const auto& read) { return read->over() && !read->failure(); });
  return tasks_ == 0 &&
         std::all_of(read_.begin(), read_.end(), [](const auto& read) { return read->over(); });
}

std::shared_ptr<Report> report() {
  return tracked && tracked->record_ ? std::make_shared<Report>(tracked->record_) : nullptr;
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
      walk.visit(array);
    }
    if (!walk.depending.empty()) {
      depending_ = std::move(walk.depending);
      record_ = std::make_shared<Record>(std::move(walk.read));
    }
  }
  tracked = this;
}

Tracked::~Tracked() {
  tracked = outer_;
}

void Tracked::remember() {
  if (!record_ || (record_->over() && !record_->failure())) {
    return;
  }
  auto& all = known();
  std::lock_guard lock(all.mutex);
  for (const auto& node : depending_) {
    all.remember(node, record_);
  }
}

void Tracked::check() {
  remember();
  if (record_) {
    if (auto why = record_->failure()) {
      throw std::runtime_error(*why);
    }
  }
}

void remember_failure(const std::vector<mx::array>& arrays, const std::string& why) {
  auto record = std::make_shared<Record>(std::vector<std::shared_ptr<Record>>());
  record->fail(why);
  auto& all = known();
  std::lock_guard lock(all.mutex);
  for (const auto& array : arrays) {
    all.remember(node_of(array), record);
  }
}

} // namespace mlx_primitives
