// Records of evaluations that failed after their tasks were queued.
//
// MLX stores an exception of a task in the task's stream. It throws the exception once, to the next
// caller that waits for that stream. After that, MLX treats the task's unfinished data as a result.
// In evaluations by `Tracked`, our tasks never throw. They report an error to the `Record` of the
// array that they compute. The arrays that are computed from it then fail too.
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

/**
 * Counts the unfinished tasks of one evaluation, and lists the evaluations whose results they read.
 */
class Progress {
 public:
  /** Records that this evaluation reads the results of another evaluation. */
  void read(std::shared_ptr<Progress> other);

  /** Whether all tasks have run in this evaluation and in the evaluations that it reads from. */
  bool over();

 private:
  friend class Report;

  std::atomic<int> tasks_{0};
  std::mutex mutex_;
  bool over_ = false;
  std::vector<std::shared_ptr<Progress>> read_;
};

/** Whether the computation of an array failed, and why. */
class Record : public std::enable_shared_from_this<Record> {
 public:
  explicit Record(std::shared_ptr<Progress> progress) : progress_(std::move(progress)) {}

  /** Records that this array is computed from the array that `other` describes. */
  void read(Record& other);

  /** Fails this array and all arrays that are computed from it. Keeps the first reason. */
  void fail(const std::string& why);

  /** The reason for the failure, or nothing if the array did not fail. */
  std::optional<std::string> failure();

  const std::shared_ptr<Progress>& progress() const {
    return progress_;
  }

 private:
  std::shared_ptr<Progress> progress_;
  std::mutex mutex_;
  std::optional<std::string> why_;
  std::vector<std::weak_ptr<Record>> readers_;
};

/**
 * A task's access to the record of its output. While a report exists, its evaluation is not over.
 */
class Report {
 public:
  explicit Report(std::shared_ptr<Record> record) : record_(std::move(record)) {
    ++record_->progress()->tasks_;
  }
  ~Report() {
    --record_->progress()->tasks_;
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
 * Returns the report for the task that is being queued, which computes the output with this
 * `array::id`. Returns null if MLX evaluates outside a `Tracked`. Such a task has no record, so it
 * throws.
 */
std::shared_ptr<Report> report(uintptr_t output);

/** The base class of primitives whose tasks can fail. */
class Fallible {
 protected:
  Fallible();
  Fallible(const Fallible&) = delete;
  Fallible& operator=(const Fallible&) = delete;
  virtual ~Fallible();
};

/**
 * One evaluation of arrays on this thread. It must be constructed before the tasks are queued. The
 * constructor finds the arrays that depend on tasks that can fail, and gives each of them a record.
 * It throws if the arrays, or their inputs, failed before.
 */
class Tracked {
 public:
  explicit Tracked(const std::vector<mx::array>& arrays);
  ~Tracked();
  Tracked(const Tracked&) = delete;
  Tracked& operator=(const Tracked&) = delete;

  /**
   * Must be called after all tasks are queued. Keeps the records of arrays that are still
   * referenced, unless all tasks have already succeeded.
   */
  void remember();

  /** Throws the error of one of the failed arrays, if there are any. */
  void check() const;

  struct Depending {
    std::weak_ptr<const void> node;
    std::shared_ptr<Record> record;
  };

 private:
  std::vector<Depending> depending_;               // arrays that depend on tasks that can fail
  std::vector<std::shared_ptr<Record>> asked_for_; // records of the arrays to evaluate
  std::unordered_map<uintptr_t, std::shared_ptr<Report>> reports_; // by an output's `array::id`
  Tracked* outer_;

  friend std::shared_ptr<Report> report(uintptr_t output);
};

/**
 * `hold_failures` runs before a fork, and `release_failures` after it, so that no thread changes
 * the records during the fork.
 */
void hold_failures();
void release_failures();

/** Records a failure of all these arrays. Used if MLX does not say which array failed. */
void remember_failure(const std::vector<mx::array>& arrays, const std::string& why);

} // namespace mlx_primitives
