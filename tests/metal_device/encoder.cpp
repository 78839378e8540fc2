#include <array>
#include <stdexcept>
#include <string>

#include "mlx/backend/cpu/encoder.h"
#include "runtime/evaluate.h"
#include "runtime/failure.h"
#include "simulator.h"

namespace mlx::core::metal {

namespace {

std::array<uint32_t, 3> extents(MTL::Size size) {
  for (NS::UInteger extent : {size.width, size.height, size.depth}) {
    if (extent == 0 || extent > UINT32_MAX) {
      throw std::runtime_error("[simulate] a grid or group of " + std::to_string(extent));
    }
  }
  return {
      static_cast<uint32_t>(size.width),
      static_cast<uint32_t>(size.height),
      static_cast<uint32_t>(size.depth)};
}

/** The bytes that an array's elements span before its first element, and from that element on. */
std::pair<size_t, size_t> around(const array& a) {
  size_t before = 0, after = a.size() == 0 ? 0 : 1;
  for (int axis = 0; axis < static_cast<int>(a.ndim()) && a.size() > 0; axis++) {
    int64_t reach = (a.shape(axis) - 1) * a.strides(axis);
    (reach < 0 ? before : after) += reach < 0 ? -reach : reach;
  }
  return {before * a.itemsize(), after * a.itemsize()};
}

} // namespace

void CommandEncoder::set_compute_pipeline_state(MTL::ComputePipelineState* kernel) {
  pipeline_ = kernel;
  bindings_.clear();
  threadgroup_.clear();
}

void CommandEncoder::set_array(const array& a, int idx, int64_t offset, bool writable) {
  // Metal binds the whole buffer. The simulator binds only the view, to report accesses outside it.
  auto address = reinterpret_cast<uintptr_t>(a.data<uint8_t>());
  auto [before, after] = around(a);
  size_t bytes = before > 0 ? after : a.data_size() * a.itemsize();
  bindings_[idx] = {address + offset, before, bytes - offset, writable, nullptr, a.id()};
}

void CommandEncoder::set_input_array(const array& a, int idx, int64_t offset) {
  set_array(a, idx, offset, false);
}

void CommandEncoder::set_output_array(array& a, int idx, int64_t offset) {
  set_array(a, idx, offset, true);
}

void CommandEncoder::set_inline(const void* data, size_t bytes, int idx) {
  if (bytes > 4096) {
    throw std::runtime_error("[simulate] Metal takes at most 4096 bytes by value");
  }
  auto* first = static_cast<const uint8_t*>(data);
  auto copy = std::make_shared<const std::vector<uint8_t>>(first, first + bytes);
  bindings_[idx] = {reinterpret_cast<uintptr_t>(copy->data()), 0, bytes, false, copy, 0};
}

void CommandEncoder::set_threadgroup_memory_length(size_t length, int idx) {
  if (length % 16 != 0) {
    throw std::runtime_error("[simulate] Metal takes threadgroup memory in multiples of 16 bytes");
  }
  threadgroup_[idx] = length;
}

void CommandEncoder::add_temporary(array arr) {
  cpu::get_command_encoder(stream_).add_temporary(std::move(arr));
}

void CommandEncoder::add_temporaries(std::vector<array> arrays) {
  cpu::get_command_encoder(stream_).add_temporaries(std::move(arrays));
}

void CommandEncoder::dispatch_threadgroups(MTL::Size grid_dims, MTL::Size group_dims) {
  dispatch(grid_dims, group_dims, false);
}

void CommandEncoder::dispatch_threads(MTL::Size grid_dims, MTL::Size group_dims) {
  dispatch(grid_dims, group_dims, true);
}

void CommandEncoder::dispatch(MTL::Size grid, MTL::Size group, bool grid_is_threads) {
  if (!pipeline_) {
    throw std::runtime_error("[simulate] a dispatch without a pipeline state");
  }
  // A task must be copyable and a Box is not, so share the Box.
  auto call = std::make_shared<rust::Box<bridge::SimulatedDispatch>>(
      bridge::simulated_dispatch(extents(grid), extents(group)));
  if (grid_is_threads) {
    (*call)->count_threads();
  }
  if (group.width * group.height * group.depth > pipeline_->maxTotalThreadsPerThreadgroup()) {
    throw std::runtime_error("[simulate] a threadgroup of more threads than the pipeline takes");
  }
  std::vector<std::shared_ptr<const std::vector<uint8_t>>> copies;
  uintptr_t output = 0;
  for (auto& [index, bound] : bindings_) {
    if (bound.writable && mlx_primitives::report(bound.array)) {
      output = bound.array;
    }
    if (bound.copy) {
      copies.push_back(bound.copy);
      (*call)->bind_constant(index, bound.address, bound.bytes);
    } else {
      (*call)->bind(index, bound.address, bound.before, bound.bytes, bound.writable);
    }
  }
  for (auto& [index, bytes] : threadgroup_) {
    (*call)->reserve(index, bytes);
  }
  // The task need not hold its arrays. MLX keeps a primitive's buffers until the primitive's tasks
  // end.
  mlx_primitives::queue(
      stream_, output, [kernel = pipeline_->kernel(), call, copies = std::move(copies)] {
        bridge::simulate(*kernel->simulated, **call);
      });
}

CommandEncoder& get_command_encoder(Stream s) {
  // Each stream belongs to one thread, so its encoder can be thread-local.
  thread_local std::unordered_map<int, CommandEncoder> encoders;
  return encoders.try_emplace(s.index, s).first->second;
}

} // namespace mlx::core::metal
