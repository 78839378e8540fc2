// What is remembered of evaluations that failed after their tasks were queued.
//
// MLX stores what a task throws in the task's stream and throws it again to whoever waits for that
// stream next, once; what the task left behind is a result from then on. Tasks of ours throw
// nothing. They report to the record of their evaluation, and the arrays that were computed from
// theirs keep that record.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "mlx/array.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/** How the computation of an array went. */
class Record {
 public:
  /** `read`: the records of what it is computed from. */
  explicit Record(std::vector<std::shared_ptr<Record>> read) : read_(std::move(read)) {}

  /** Keeps the first reason. */
  void fail(const std::string& why);

  /** The first reason why this, or what it is computed from, failed. */
  std::optional<std::string> failure();

  /** Whether no task is left to run, here and where it reads from. */
  bool over();

 private:
  friend class Report;

  std::atomic<int> tasks_{0};
  std::mutex mutex_;
  std::optional<std::string> why_;
  std::vector<std::shared_ptr<Record>> read_;
};

/** A task's access to its record, which is not over while somebody holds this. */
class Report {
 public:
  explicit Report(std::shared_ptr<Record> record) : record_(std::move(record)) {
    ++record_->tasks_;
  }
  ~Report() {
    --record_->tasks_;
  }
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  Record& record() const {
    return *record_;
  }

 private:
  std::shared_ptr<Record> record_;
};

/**
 * For a task that is being queued and computes the output of this `array::id`: how it reports. Null
 * while MLX evaluates without `Tracked`; a task then throws, for want of a better place.
 */
std::shared_ptr<Report> report(uintptr_t output);

/** A primitive derives from this if its tasks can fail. */
class Fallible {
 protected:
  Fallible();
  Fallible(const Fallible&) = delete;
  Fallible& operator=(const Fallible&) = delete;
  virtual ~Fallible();
};

/**
 * One evaluation of arrays on this thread, from before its tasks are queued. It finds out which
 * arrays are computed from tasks that can fail, and gives each of them a record. The constructor
 * throws if the arrays, or what they are to be computed from, failed before.
 */
class Tracked {
 public:
  explicit Tracked(const std::vector<mx::array>& arrays);
  ~Tracked();
  Tracked(const Tracked&) = delete;
  Tracked& operator=(const Tracked&) = delete;

  /**
   * To be called once all tasks are queued. Arrays that somebody still holds keep their records,
   * unless all has gone well already.
   */
  void remember();

  /** Throws the failure of one of the arrays, if there is one. */
  void check() const;

  struct Depending {
    std::weak_ptr<const void> node;
    std::shared_ptr<Record> record;
  };

 private:
  std::vector<Depending> depending_;               // arrays that depend on tasks that can fail
  std::vector<std::shared_ptr<Record>> asked_for_; // those of them that are evaluated
  std::unordered_map<uintptr_t, std::shared_ptr<Report>> reports_; // by `array::id` of outputs
  Tracked* outer_;

  friend std::shared_ptr<Report> report(uintptr_t output);
};

/** Remembers that these arrays hold no results, where MLX does not say which of them failed. */
void remember_failure(const std::vector<mx::array>& arrays, const std::string& why);

} // namespace mlx_primitives
