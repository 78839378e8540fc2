// Collects calls of CPU kernels, so that the stream's thread gets several calls at a time. Also
// keeps the memory alive that a stream's work uses.
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
 * Collects the calls that this thread queues on a CPU stream, and gives several calls at a time to
 * the stream's thread. Each task costs two locks and, if the thread sleeps, a wake-up. A wake-up
 * takes longer than a small kernel. The calls run in the order in which they are queued. A task
 * that does not go through the batch may only be queued after `flush_calls`.
 *
 * A stream of an NVIDIA GPU has no calls, because MLX collects its kernels in a graph. For such a
 * stream, the batch keeps the memory that the graph uses alive, and makes MLX commit the graph.
 */
class Batch {
 public:
  explicit Batch(mx::Stream stream);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  /** Constructs the thread-local data of this class. */
  static void prepare();

  /** The innermost batch of this thread, or null. */
  static Batch* current();

  void add(std::function<void()> call);

  /** Keeps an array's memory alive until the tasks and calls that are already queued have run. */
  void keep(const mx::array& array);

  /** Records that ops update the memory of `state` in place. `state` must have been computed. */
  void updated(const mx::array& state);

  /**
   * Returns whether the next op may overwrite the memory of `state`. It may if only `state`, as an
   * input of one op, and earlier work of this stream use the memory, because the op runs after that
   * work. A CUDA graph of MLX orders an op after ops that write its memory, but not after ops that
   * read its memory. So this function first commits a graph that reads the memory.
   */
  bool takes_over(const mx::array& state);

  /** Gives everything that was collected to the stream. */
  void flush();

  /** Like `flush`, but does nothing if no call was collected. */
  void flush_calls();

  /** Like `flush`, but does nothing unless many items were collected or MLX's graph is large. */
  void flush_if_full();

  /**
   * Waits until a stream has few unfinished tasks from this thread's batches. This bounds the
   * memory of evaluations that no thread waits for.
   */
  static void wait_for_tasks(mx::Stream stream);

 private:
  struct Item {
    std::function<void()> call; // may be empty
    std::vector<std::shared_ptr<void>> memory{};
  };

  /**
   * A reference to memory that all queued work shares. So the work counts as a single holder of the
   * memory.
   */
  struct Use {
    std::shared_ptr<mx::array::Data> memory;
    uint64_t handed = 0; // the number of flushes before the last one that kept it
  };
  using Uses = std::unordered_map<const void*, std::weak_ptr<Use>>; // the key is the memory

  /** The memory that this thread's tasks use on a stream, and the number of those tasks. */
  struct Given {
    Uses uses;
    std::shared_ptr<std::atomic<int>> tasks = std::make_shared<std::atomic<int>>(0); // unfinished
    uint64_t flushes = 0;
  };
  static std::unordered_map<int, Given>& all_given(); // the key is a stream's index
  static Given& given_to(mx::Stream stream);

  mx::Stream stream_;
  Given& given_;
  std::vector<Item> items_;
  size_t calls_ = 0; // the number of calls among the items
  size_t full_;
  Batch* outer_;
};

/**
 * Queues the call of an op's kernel on a CPU stream. MLX, or this thread's current batch, keeps the
 * op's inputs and outputs in memory until the call has run.
 */
void queue(mx::Stream stream, std::function<void()> call);

} // namespace mlx_primitives
