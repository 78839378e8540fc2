#include "runtime/one_stream.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <unordered_set>
#include <utility>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "runtime/batch.h"
#include "runtime/contiguous.h"
#include "runtime/encoder.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

namespace {

/**
 * If the results of a graph have more bytes than this in total, MLX evaluates the graph, because
 * MLX limits memory.
 */
constexpr size_t MOST_BYTES = 16 << 20;

/** Runs an array's primitive on the primitive's device. */
void run(mx::array& array, std::vector<mx::array>& outputs) {
  auto& primitive = array.primitive();
  if (primitive.device() == mx::Device::gpu) {
    primitive.eval_gpu(array.inputs(), outputs);
  } else {
    primitive.eval_cpu(array.inputs(), outputs);
  }
}

/** If an array is only a view of its input and needs no task, makes the view and returns true. */
bool becomes_view(mx::array& array, std::vector<mx::array>& outputs) {
  auto& inputs = array.inputs();
  auto kind = view_kind(array.primitive());
  if (kind == View::none || inputs.size() != 1 || array.size() == 0) {
    return false;
  }
  auto& input = inputs[0];
  if (kind != View::always && !input.flags().row_contiguous) {
    return false;
  }
  if (kind == View::contiguous) {
    constexpr size_t spare = 16384; // a view must not keep much more memory than it needs
    bool shares = input.buffer_size() <= array.nbytes() + spare;
    if (shares) {
      array.copy_shared_buffer(input);
    }
    return shares;
  }
  run(array, outputs);
  return true;
}

/**
 * The bytes that the op of an array probably allocates for its outputs, beyond the memory that they
 * share with its inputs.
 */
size_t new_bytes(const mx::array& array) {
  auto& primitive = array.primitive();
  if (is_cuda(primitive.stream()) && updates_slice(primitive)) {
    return array.inputs().at(1).nbytes(); // only the slice; a copied cache is then freed
  }
  auto* ours = dynamic_cast<const FusedPrimitive*>(&primitive);
  if (array.siblings().empty()) {
    bool shared = ours ? ours->updates() > 0 : view_kind(primitive) != View::none;
    return shared ? 0 : array.nbytes();
  }
  auto outputs = array.outputs();
  size_t bytes = 0;
  for (size_t i = ours ? ours->updates() : 0; i < outputs.size(); ++i) {
    bytes += outputs[i].nbytes();
  }
  return bytes;
}

/** The arrays of a graph that are not computed yet. Each comes after its inputs. */
class Tape {
 public:
  std::vector<mx::array> arrays;

  explicit Tape(mx::Stream stream) : stream_(stream) {
    seen_.reserve(512); // about the number of arrays in a decoded token
  }

  /**
   * Appends an array and the arrays that it depends on. Returns false if MLX has to evaluate the
   * graph.
   */
  bool append(mx::array& root) {
    if (!enter(root)) {
      return false;
    }
    while (!path_.empty()) {
      auto& [array, next] = path_.back();
      if (next < array->inputs().size()) {
        if (!enter(array->inputs()[next++])) {
          return false;
        }
      } else {
        arrays.push_back(*array);
        path_.pop_back();
      }
    }
    return true;
  }

  size_t bytes() const {
    return bytes_;
  }

 private:
  mx::Stream stream_;
  std::vector<std::pair<mx::array*, size_t>> path_; // with the index of the next input
  std::unordered_set<uintptr_t> seen_;
  size_t bytes_ = 0;

  bool enter(mx::array& array) {
    if (array.status() != mx::array::Status::unscheduled) {
      bool ready =
          array.is_available() || (array.event().valid() && array.event().stream() == stream_);
      if (array.has_primitive() && !array.is_tracer()) {
        array.detach();
      }
      return ready;
    }
    if (!array.has_primitive() || array.is_tracer() || array.primitive().stream() != stream_) {
      return false;
    }
    if (seen_.insert(array.id()).second) {
      bytes_ += new_bytes(array);
      if (bytes_ > MOST_BYTES) {
        return false;
      }
      for (const auto& sibling : array.siblings()) {
        seen_.insert(sibling.id());
      }
      path_.emplace_back(&array, 0);
    }
    return true;
  }
};

/** Keeps the memory of arrays alive until the work that was queued before has run. */
void keep_all(const std::vector<mx::array>& arrays, Batch& batch) {
  for (const auto& array : arrays) {
    if (array.data_shared_ptr()) {
      batch.keep(array);
    }
  }
}

/** Queues the computation of an array: as a call in the batch, or as a task after the batch. */
void queue_one(mx::array& array, Batch& batch) {
  auto& primitive = array.primitive();
  auto outputs = array.outputs();
  if (becomes_view(array, outputs)) {
    return;
  }
  // Every output lists the inputs. Clear all lists except the list of `array`, so that the op can
  // take over the memory of an input that nothing else holds.
  for (auto& sibling : array.siblings()) {
    sibling.inputs().clear();
  }
  bool ours = dynamic_cast<FusedPrimitive*>(&primitive);
  if (!ours) {
    batch.flush_calls();
  }
  try {
    run(array, outputs);
  } catch (...) {
    keep_all(array.inputs(), batch);
    throw;
  }
  auto keep = [&](const mx::array& other) {
    // As in MLX, keep no other reference to memory that `array` shares, so that the next op may
    // overwrite it.
    if (other.data_shared_ptr() != array.data_shared_ptr()) {
      batch.keep(other);
    }
  };
  for (const auto* others : {&std::as_const(array).inputs(), &std::as_const(array).siblings()}) {
    std::for_each(others->begin(), others->end(), keep);
  }
  if (!ours && primitive.device() == mx::Device::cpu) {
    auto& encoder = mx::cpu::get_command_encoder(primitive.stream());
    for (const auto& temporary : std::exchange(encoder.temporaries(), {})) {
      batch.keep(temporary);
    }
  }
  batch.flush_if_full();
}

/**
 * The primitive of the only array that MLX evaluates. Its evaluation queues all arrays of the tape.
 * MLX signals the event of this array after all that work, so the event also serves for the arrays
 * of the tape.
 */
class Queue : public mx::Primitive {
 public:
  Queue(mx::Stream stream, std::vector<mx::array> tape, std::vector<mx::array> roots)
      : mx::Primitive(stream), tape_(std::move(tape)), roots_(std::move(roots)) {}

  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>& outputs) override {
    queue_all(outputs);
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>& outputs) override {
    queue_all(outputs);
  }

  const char* name() const override {
    return "Queue";
  }

  const std::exception_ptr& error() const {
    return error_;
  }

 private:
  std::vector<mx::array> tape_;
  std::vector<mx::array> roots_; // the arrays that were asked for
  std::exception_ptr error_;

  void queue_all(const std::vector<mx::array>& outputs) {
    auto event = outputs[0].event();
    size_t before = mx::get_active_memory();
    Batch batch(stream());
    size_t at = 0;
    try {
      if (!event.valid()) {
        refuse(name(), "expected MLX to attach an event, got none");
      }
      while (at < tape_.size()) {
        auto array = std::move(tape_[at++]); // so that only this variable holds it
        all(array, [&](const mx::array& output) { output.attach_event(event); });
        queue_one(array, batch);
        all(array,
            [](const mx::array& output) { output.set_status(mx::array::Status::evaluated); });
        array.detach();
        if (mx::get_active_memory() > before + 2 * MOST_BYTES) { // more than estimated
          batch.flush();
          Batch::wait_for_tasks(stream());
          if (is_cuda(stream())) { // the limit on tasks bounds the memory
            before = mx::get_active_memory();
          }
        }
      }
    } catch (...) {
      // The event must still be signaled, for the arrays before the array that failed.
      error_ = std::current_exception();
    }
    // A call keeps the memory alive that it reads, but not its results, so the batch keeps the
    // results of the roots (the arrays that the caller evaluates). After an error, the batch also
    // keeps the arrays that the remaining calls would have read.
    for (; at < tape_.size(); ++at) {
      keep_all(tape_[at].inputs(), batch);
    }
    keep_all(std::exchange(roots_, {}), batch);
    batch.flush();
  }

  static void all(const mx::array& array, const auto& action) {
    action(array);
    for (const auto& sibling : array.siblings()) {
      action(sibling);
    }
  }
};

} // namespace

bool queue_on_one_stream(const std::vector<mx::array>& arrays) {
  auto left = std::find_if(arrays.begin(), arrays.end(), [](const mx::array& array) {
    return array.status() == mx::array::Status::unscheduled && array.has_primitive();
  });
  if (left == arrays.end() || simulating()) {
    return false;
  }
  auto stream = left->primitive().stream();
  if (stream.device != mx::Device::cpu && !is_cuda(stream)) {
    return false;
  }
  Tape tape(stream);
  auto roots = arrays;
  for (auto& root : roots) {
    if (!tape.append(root)) {
      return false;
    }
  }
  if (mx::get_active_memory() + tape.bytes() > mx::get_memory_limit()) {
    return false;
  }
  auto queue = std::make_shared<Queue>(stream, std::move(tape.arrays), std::move(roots));
  mx::async_eval({mx::array(mx::Shape{}, mx::bool_, queue, std::vector<mx::array>{})});
  if (queue->error()) {
    std::rethrow_exception(queue->error());
  }
  Batch::wait_for_tasks(stream);
  return true;
}

} // namespace mlx_primitives
