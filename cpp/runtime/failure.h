// Records of evaluations that failed after their tasks were queued.
//
// MLX stores an exception of a task in the task's stream. It throws the exception once, to the next
// caller that waits for that stream. After that, the unfinished data of the task counts as a
// result. Our tasks never throw. They report to the record of their evaluation, and the arrays that
// were computed from their outputs keep that record.
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

/** The tasks of one evaluation, and the evaluations whose results they read. */
class Progress {
 public:
  /** Records that this evaluation reads results of another one. */
  void read(std::shared_ptr<Progress> other);

  /** Whether all tasks have run, in this evaluation and in the evaluations that it reads from. */
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

  /** Fails this array and all arrays that are computed from it. The first reason is kept. */
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

/** A task's access to its record. The evaluation is not over as long as a report exists. */
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
 * The report for a task that is being queued and computes the output with this `array::id`. Null if
 * MLX evaluates outside a `Tracked`; then the task throws, because it has no record.
 */
std::shared_ptr<Report> report(uintptr_t output);

/** Base of primitives whose tasks can fail. */
class Fallible {
 protected:
  Fallible();
  Fallible(const Fallible&) = delete;
  Fallible& operator=(const Fallible&) = delete;
  virtual ~Fallible();
};

/**
 * One evaluation of arrays on this thread, constructed before its tasks are queued. It finds the
 * arrays that depend on tasks that can fail, and gives each of them a record. The constructor
 * throws if the arrays, or their inputs, failed before.
 */
class Tracked {
 public:
  explicit Tracked(const std::vector<mx::array>& arrays);
  ~Tracked();
  Tracked(const Tracked&) = delete;
  Tracked& operator=(const Tracked&) = delete;

  /**
   * Must be called once all tasks are queued. Arrays that are still referenced keep their records,
   * unless all tasks have succeeded already.
   */
  void remember();

  /** Throws the error of one of the arrays that failed, if any did. */
  void check() const;

  struct Depending {
    std::weak_ptr<const void> node;
    std::shared_ptr<Record> record;
  };

 private:
  std::vector<Depending> depending_;               // arrays that depend on tasks that can fail
  std::vector<std::shared_ptr<Record>> asked_for_; // of the arrays to evaluate
  std::unordered_map<uintptr_t, std::shared_ptr<Report>> reports_; // by `array::id` of outputs
  Tracked* outer_;

  friend std::shared_ptr<Report> report(uintptr_t output);
};

/** Called before and after a fork, so that no thread changes the records in between. */
void hold_failures();
void release_failures();

/** Records that these arrays have no result. Used if MLX does not say which of them failed. */
void remember_failure(const std::vector<mx::array>& arrays, const std::string& why);

} // namespace mlx_primitives
