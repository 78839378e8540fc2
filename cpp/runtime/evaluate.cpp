#include "runtime/evaluate.h"

#include <algorithm>
#include <stdexcept>

#include "mlx-primitives/src/collectives.rs.h"
#include "mlx-primitives/src/ffi/mod.rs.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "runtime/batch.h"
#include "runtime/failure.h"
#include "runtime/one_stream.h"
#include "runtime/process.h"

namespace mlx_primitives {

namespace {

void start(const std::vector<mx::array>& arrays) {
  if (!queue_on_one_stream(arrays)) {
    mx::async_eval(arrays);
  }
}

/**
 * Evaluates arrays. If all are on the CPU, this thread runs parts of the kernels while it waits,
 * which is faster than waking another thread.
 */
void compute(const std::vector<mx::array>& arrays) {
  auto elsewhere = [](const mx::array& a) {
    return a.is_tracer() || (a.has_primitive() && a.primitive().device() != mx::Device::cpu);
  };
  if (std::any_of(arrays.begin(), arrays.end(), elsewhere)) {
    queue_on_one_stream(arrays); // has an effect only on an NVIDIA GPU
    return mx::eval(arrays);
  }
  start(arrays);
  bridge::lend_thread(arrays);
  mx::eval(arrays);
}

/**
 * Runs `wait`, and reports its beginning and end to the group of ranks if this process has joined a
 * group. If the other ranks do not let the wait end, the group ends it. The group remembers
 * failures. Throws at once if the group is broken.
 */
template <typename Wait>
void reported(Wait wait) {
  auto id = bridge::begin_wait();
  try {
    wait();
  } catch (...) {
    bridge::end_wait(id, true);
    throw;
  }
  bridge::end_wait(id, false);
}

void evaluate_tracked(const std::vector<mx::array>& arrays) {
  Tracked tracked(arrays);
  std::vector<mx::array> awaited;
  for (const auto& array : arrays) {
    if (array.status() != mx::array::Status::available) {
      awaited.push_back(array);
    }
  }
  try {
    compute(arrays);
  } catch (const std::exception& error) {
    tracked.remember();
    // If all arrays were queued, one of MLX's tasks failed while this thread waited, so record the
    // failure. Otherwise, the next evaluation computes the arrays that were not queued.
    bool queued = std::none_of(awaited.begin(), awaited.end(), [](const mx::array& array) {
      return array.status() == mx::array::Status::unscheduled;
    });
    if (queued) {
      remember_failure(awaited, error.what());
    }
    throw;
  }
  tracked.remember();
  tracked.check();
}

void queue_tracked(const std::vector<mx::array>& arrays) {
  Tracked tracked(arrays);
  try {
    start(arrays);
  } catch (...) {
    tracked.remember();
    throw;
  }
  tracked.remember();
}

} // namespace

void evaluate(const std::vector<mx::array>& arrays) {
  if (refusal() && std::all_of(arrays.begin(), arrays.end(), [](const mx::array& array) {
        return array.status() == mx::array::Status::available;
      })) {
    Tracked failed(arrays); // throws if an array has failed
    return;
  }
  prepare();
  Inside inside;
  reported([&] { evaluate_tracked(arrays); });
}

void evaluate_async(const std::vector<mx::array>& arrays) {
  prepare();
  Inside inside;
  reported([&] { queue_tracked(arrays); });
}

void synchronize(mx::Stream stream) {
  Inside inside;
  reported([&] { mx::synchronize(stream); });
}

void queue(
    mx::Stream stream, uintptr_t output, std::function<void()> task, std::function<void()> spoil) {
  auto run = [reported = report(output), task = std::move(task), spoil = std::move(spoil)] {
    if (abandoned()) {
      return;
    }
    if (reported && reported->record().failure()) {
      return spoil();
    }
    try {
      task();
    } catch (const std::exception& error) {
      spoil();
      if (!reported) {
        throw;
      }
      reported->record().fail(error.what());
    }
  };
  if (auto* batch = Batch::current()) {
    batch->flush_calls();
  }
  mx::cpu::get_command_encoder(stream).dispatch(std::move(run));
}

} // namespace mlx_primitives
