// Adds dispatches to the graphs of MLX's CUDA backend; no_cuda.cpp replaces this file in builds
// without the feature `cuda`.
#include <cstring>
#include <map>
#include <stdexcept>

#include "mlx-primitives/src/cuda.rs.h"
#include "mlx/backend/cuda/device.h"
#include "mlx/backend/cuda/utils.h"
#include "runtime/cuda_kernels.h"
#include "runtime/cuda_rows.h"
#include "runtime/encoder.h"
#include "runtime/metallib.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

namespace {

/** MLX has the attributes of the devices that it uses. */
uint32_t architecture(mx::cu::Device& device) {
  return static_cast<uint32_t>(
      10 * device.compute_capability_major() + device.compute_capability_minor());
}

class CudaEncoder : public Encoder {
 public:
  explicit CudaEncoder(const mx::Stream& stream) : to_(mx::cu::get_command_encoder(stream)) {}

  /** On an H200, rows of 4096 elements took less time in groups of 512 threads than of 1024. */
  uint32_t most_threads() const override {
    return 512;
  }

  void plan_anew(Launch& launch, uint32_t most_threads) const override {
    if (launch.rows) {
      plan_cuda_rows(launch, most_threads);
    }
  }

  Kernel kernel(const Dispatch& dispatch) override {
    auto& device = to_.device();
    device.make_current();
    auto* found = cuda_kernel(dispatch, device.cuda_device(), architecture(device));
    return {found, found->max_threads};
  }

  void begin(const Kernel& kernel) override {
    kernel_ = static_cast<CudaKernel*>(kernel.handle);
    buffers_.clear();
    memory_.clear();
  }

  void reserve_threadgroup_memory(uint32_t index, uint32_t bytes) override {
    memory_[index] = bytes;
  }

  void bind_input(const mx::array& array, uint32_t index, int64_t offset) override {
    to_.set_input_array(array);
    bind_address(array, index, offset);
  }

  void bind_output(mx::array& array, uint32_t index, int64_t offset) override {
    to_.set_output_array(array);
    bind_address(array, index, offset);
  }

  void bind_bytes(const std::vector<uint8_t>& bytes, uint32_t index) override {
    buffers_[index] = bytes;
  }

  void run(const Launch& launch, bool grid_is_threads) override {
    dim3 group(launch.group[0], launch.group[1], launch.group[2]);
    dim3 grid(launch.grid[0], launch.grid[1], launch.grid[2]);
    if (grid_is_threads) {
      grid = dim3(
          static_cast<uint32_t>(ceil_div(grid.x, group.x)),
          static_cast<uint32_t>(ceil_div(grid.y, group.y)),
          static_cast<uint32_t>(ceil_div(grid.z, group.z)));
    }
    constexpr uint32_t most = 65535;
    if (grid.y > most || grid.z > most) {
      throw std::runtime_error(
          "[cuda] a grid of " + std::to_string(grid.y) + " by " + std::to_string(grid.z) +
          " threadgroups in y and z; CUDA has at most 65535 of each.");
    }
    std::map<uint32_t, uint32_t> places;
    uint32_t shared = 0;
    for (auto [index, bytes] : memory_) {
      places[index] = shared;
      shared += round_up(bytes, 16);
    }
    allow(shared);
    std::vector<std::vector<uint8_t>> values;
    for (const auto& argument : kernel_->arguments) {
      values.push_back(value(argument, launch, places));
      values.back().resize(std::max(values.back().size(), argument.bytes));
    }
    std::vector<void*> pointers;
    for (auto& bytes : values) {
      pointers.push_back(bytes.data());
    }
    try {
      to_.add_kernel_node_raw(kernel_->function, grid, group, dim3(), shared, pointers.data());
    } catch (const std::exception& error) {
      auto size = [](dim3 of) {
        return std::to_string(of.x) + "x" + std::to_string(of.y) + "x" + std::to_string(of.z);
      };
      throw std::runtime_error(
          error.what() + (" (" + kernel_->name) + ": " + size(grid) + " groups of " + size(group) +
          " threads, " + std::to_string(shared) + " bytes of shared memory)");
    }
  }

  void keep(const mx::array& array) override {
    to_.add_temporary(array);
  }

 private:
  template <typename T>
  static std::vector<uint8_t> bytes_of(const T& value) {
    std::vector<uint8_t> bytes(sizeof(T));
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }

  void bind_address(const mx::array& array, uint32_t index, int64_t offset) {
    // Arrays without elements may have no buffer.
    bool has_buffer = array.buffer().ptr() != nullptr;
    auto first = has_buffer ? reinterpret_cast<uintptr_t>(mx::gpu_ptr<void>(array)) : 0;
    buffers_[index] = bytes_of(first + offset);
  }

  std::vector<uint8_t> value(
      const CudaArgument& argument,
      const Launch& launch,
      const std::map<uint32_t, uint32_t>& places) const {
    switch (argument.kind) {
      case CudaArgument::Buffer:
        return buffers_.at(argument.index);
      case CudaArgument::ThreadgroupMemory: {
        auto place = places.find(argument.index);
        return bytes_of(place == places.end() ? 0u : place->second);
      }
      default:
        return bytes_of(launch.grid);
    }
  }

  /** Lets launches use this much threadgroup memory. */
  void allow(uint32_t bytes) {
    if (bytes > kernel_->shared_bytes) {
      auto attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
      CUDA_DRIVER(cuFuncSetAttribute, kernel_->function, attribute, static_cast<int>(bytes));
      kernel_->shared_bytes = bytes;
    }
  }

  mx::cu::CommandEncoder& to_; // of MLX
  CudaKernel* kernel_{nullptr};
  std::map<uint32_t, std::vector<uint8_t>> buffers_; // an address or bytes by value
  std::map<uint32_t, uint32_t> memory_;              // bytes of threadgroup memory
};

} // namespace

std::unique_ptr<Encoder> cuda_encoder(const mx::Stream& stream) {
  return is_cuda(stream) ? std::make_unique<CudaEncoder>(stream) : nullptr;
}

void construct_cuda_encoders() {
  try {
    mx::cu::get_command_encoder(mx::Stream(-1, mx::Device::gpu)); // looks into the list
  } catch (const std::exception&) {
    // There is no such stream.
  }
}

bool is_cuda(const mx::Stream& stream) {
  return stream.device == mx::Device::gpu;
}

bool has_device_memory() {
  static const bool has = mx::is_available(mx::Device::gpu);
  return has;
}

std::string cuda_description() {
  return std::string(bridge::cuda_description());
}

} // namespace mlx_primitives
