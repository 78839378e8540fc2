#include "ops/hosted.h"

#include <cstring>

#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/hosted.rs.h"
#include "ops/failed.h"

namespace mlx_primitives {

namespace {

/** One call of eval_cpu. Its arrays own nothing: MLX keeps the memory until the task has run. */
struct Call {
  HostedHandle op;
  std::vector<mx::array> inputs;
  std::vector<mx::array> outputs;
  std::vector<Memory> read;
  std::vector<Memory> written;
  int in_place;

  void operator()() {
    try {
      for (const auto& memory : read) {
        if (auto why = failure_of(memory); !why.empty()) {
          throw std::runtime_error(why);
        }
      }
      if (in_place >= 0 && bytes(outputs[0]) != bytes(inputs[in_place])) {
        std::memcpy(bytes(outputs[0]), bytes(inputs[in_place]), outputs[0].nbytes());
      }
      bridge::hosted_eval(**op, inputs, outputs);
    } catch (const std::exception& error) {
      // What others made of these outputs already waits for them: NaN, not half a result.
      for (auto& output : outputs) {
        bool floating = mx::issubdtype(output.dtype(), mx::inexact);
        std::memset(bytes(output), floating ? 0xff : 0, output.nbytes());
      }
      for (auto& memory : written) {
        remember_failure(memory, error.what());
      }
      throw;
    }
  }
};

std::vector<mx::array> borrowed(const std::vector<mx::array>& arrays) {
  std::vector<mx::array> views;
  views.reserve(arrays.size());
  for (const auto& array : arrays) {
    views.push_back(mx::array::unsafe_weak_copy(array));
  }
  return views;
}

std::vector<Memory> memory(const std::vector<mx::array>& arrays) {
  std::vector<Memory> all;
  all.reserve(arrays.size());
  for (const auto& array : arrays) {
    all.emplace_back(array.data_shared_ptr());
  }
  return all;
}

} // namespace

void Hosted::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  size_t elements = allocate_outputs(inputs, outputs);
  if (elements == 0) {
    return;
  }
  Call call{op_, borrowed(inputs), borrowed(outputs), memory(inputs), memory(outputs), in_place_};
  mx::cpu::get_command_encoder(stream()).dispatch(std::move(call));
}

} // namespace mlx_primitives
