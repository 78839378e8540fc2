// Collects calls of CPU kernels, so that the stream's thread gets several at a time, and keeps the
// memory that a stream's work uses.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/**
 * Collects the calls that this thread queues on a CPU stream, and gives several at a time to the
 * stream's thread. Each task costs two locks and, if the thread sleeps, a wake-up. A wake-up takes
 * longer than a small kernel. The calls run in the order in which they are queued. A task that does
 * not go through the batch may only be queued after `flush_calls`.
 *
 * A stream of an NVIDIA GPU has no calls, because MLX collects its kernels in a graph. For such a
 * stream, the batch keeps the memory that the graph uses, and hands the graph over.
 */
class Batch {
 public:
  explicit Batch(mx::Stream stream);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  /** Constructs this class's data for each thread. */
  static void prepare();

  /** The innermost batch of this thread, or null. */
  static Batch* current();

  void add(std::function<void()> call);

  /** Keeps an array's memory until the tasks and calls that were queued before have run. */
  void keep(const mx::array& array);

  /** Records that ops update the memory of `state` in place. `state` has been computed. */
  void updated(const mx::array& state);

  /**
   * Whether the memory of `state` is used only by `state`, which is an input of one op, and by
   * earlier work of this stream. An op that is added next runs after that work, so it may change
   * the memory. MLX's graphs order an op after earlier ops that write its memory, but not after ops
   * that read it. So a graph with ops that read it is handed over first.
   */
  bool takes_over(const mx::array& state);

  /** Hands over all that was collected. */
  void flush();

  /** Hands over all that was collected, if it includes a call. */
  void flush_calls();

  /** Hands over all that was collected, if there are many items or MLX's graph is large. */
  void flush_if_full();

  /**
   * Waits until a stream has few unfinished tasks from the batches of this thread. So evaluations
   * that no thread waits for use a bounded amount of memory.
   */
  static void wait_for_tasks(mx::Stream stream);

 private:
  struct Item {
    std::function<void()> call; // may be empty
    std::vector<std::shared_ptr<void>> memory{};
  };

  /**
   * A reference to memory. All queued work shares it, so that the work counts as one holder of the
   * memory.
   */
  struct Use {
    std::shared_ptr<mx::array::Data> memory;
    uint64_t handed = 0; // the number of flushes before the last one that kept it
  };
  using Uses = std::unordered_map<const void*, std::weak_ptr<Use>>; // by memory

  /** The memory that tasks of this thread use on a stream, and the number of those tasks. */
  struct Given {
    Uses uses;
    std::shared_ptr<std::atomic<int>> tasks = std::make_shared<std::atomic<int>>(0); // unfinished
    uint64_t flushes = 0;
  };
  static std::unordered_map<int, Given>& all_given(); // by the index of the stream
  static Given& given_to(mx::Stream stream);

  mx::Stream stream_;
  Given& given_;
  std::vector<Item> items_;
  size_t calls_ = 0; // among the items
  size_t full_;
  Batch* outer_;
};

/**
 * Queues the call of an op's kernel on a stream of a CPU. MLX, or the batch that this thread
 * collects, keeps the memory of the op's inputs and outputs until the call has run.
 */
void queue(mx::Stream stream, std::function<void()> call);

} // namespace mlx_primitives
