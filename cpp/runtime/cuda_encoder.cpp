// Adds dispatches to the CUDA graphs of MLX's backend. In builds without the feature `cuda`,
// no_cuda.cpp replaces this file.
#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "mlx-primitives/src/cuda.rs.h"
#include "mlx/backend/cuda/allocator.h"
#include "mlx/backend/cuda/device.h"
#include "mlx/backend/cuda/utils.h"
#include "runtime/cuda_kernels.h"
#include "runtime/cuda_rows.h"
#include "runtime/encoder.h"
#include "runtime/metallib.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

namespace {

/** Reads the compute capability, which MLX stores for each device that it uses. */
uint32_t architecture(mx::cu::Device& device) {
  return static_cast<uint32_t>(
      10 * device.compute_capability_major() + device.compute_capability_minor());
}

constexpr size_t MOST_BUFFERS = 32; // of a kernel; Metal has the same limit

class CudaEncoder : public Encoder {
 public:
  explicit CudaEncoder(const mx::Stream& stream) : to_(mx::cu::get_command_encoder(stream)) {}

  /** On an H200, rows of 4096 elements took less time with groups of 512 threads than with 1024. */
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
    bytes_.clear();
    places_.fill({0, 0});
    memory_.clear();
    told_.clear();
    shared_ = 0;
  }

  void reserve_threadgroup_memory(uint32_t index, uint32_t bytes) override {
    memory_.emplace_back(index, shared_);
    shared_ += round_up(bytes, 16);
  }

  void bind_input(const mx::array& array, uint32_t index, int64_t offset) override {
    if (auto id = array.buffer().ptr(); std::find(told_.begin(), told_.end(), id) == told_.end()) {
      told_.push_back(id);
      to_.set_input_array(array);
    }
    bind_address(array, index, offset);
  }

  void bind_output(mx::array& array, uint32_t index, int64_t offset) override {
    to_.set_output_array(array);
    bind_address(array, index, offset);
  }

  void bind_bytes(const std::vector<uint8_t>& bytes, uint32_t index) override {
    bind(index, bytes.data(), bytes.size());
  }

  bool is_on_host(const mx::array& array) const override {
    constexpr size_t page = 4096; // larger arrays may have moved to the GPU
    auto* buffer = static_cast<const mx::cu::CudaBuffer*>(array.buffer().ptr());
    return buffer->device < 0 && buffer->size < page;
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
    allow(shared_);
    size_t total = 0;
    for (const auto& argument : kernel_->arguments) {
      total += round_up(static_cast<uint32_t>(argument.bytes), 16);
    }
    values_.assign(total, 0);
    pointers_.clear();
    auto* at = values_.data();
    for (const auto& argument : kernel_->arguments) {
      write(argument, launch, at);
      pointers_.push_back(at);
      at += round_up(static_cast<uint32_t>(argument.bytes), 16);
    }
    try {
      to_.add_kernel_node_raw(kernel_->function, grid, group, dim3(), shared_, pointers_.data());
    } catch (const std::exception& error) {
      auto size = [](dim3 of) {
        return std::to_string(of.x) + "x" + std::to_string(of.y) + "x" + std::to_string(of.z);
      };
      throw std::runtime_error(
          error.what() + (" (" + kernel_->name) + ": " + size(grid) + " groups of " + size(group) +
          " threads, " + std::to_string(shared_) + " bytes of shared memory)");
    }
  }

  void keep(const mx::array& array) override {
    to_.add_temporary(array);
  }

 private:
  /** The position in `bytes_` of a value that is bound to a kernel's buffer index. */
  struct Place {
    uint32_t from;
    uint32_t count;
  };

  void bind(uint32_t index, const void* from, size_t count) {
    places_.at(index) = {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(count)};
    auto* bytes = static_cast<const uint8_t*>(from);
    bytes_.insert(bytes_.end(), bytes, bytes + count);
  }

  void bind_address(const mx::array& array, uint32_t index, int64_t offset) {
    // Arrays without elements may have no buffer.
    bool has_buffer = array.buffer().ptr() != nullptr;
    auto first = has_buffer ? reinterpret_cast<uintptr_t>(mx::gpu_ptr<void>(array)) : 0;
    first += offset;
    bind(index, &first, sizeof(first));
  }

  /**
   * Copies an argument's value to `to`, but at most as many bytes as the kernel's parameter has.
   */
  void write(const CudaArgument& argument, const Launch& launch, uint8_t* to) const {
    auto copy = [&](const void* from, size_t count) {
      std::memcpy(to, from, std::min(count, argument.bytes));
    };
    switch (argument.kind) {
      case CudaArgument::Buffer: {
        auto place = places_.at(argument.index);
        return copy(bytes_.data() + place.from, place.count);
      }
      case CudaArgument::ThreadgroupMemory: {
        uint32_t first = 0;
        for (auto [index, from] : memory_) {
          first = index == argument.index ? from : first;
        }
        return copy(&first, sizeof(first));
      }
      default:
        return copy(launch.grid.data(), sizeof(launch.grid));
    }
  }

  /** Allows the current kernel to use this amount of threadgroup memory. */
  void allow(uint32_t bytes) {
    if (bytes > kernel_->shared_bytes) {
      auto attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
      CUDA_DRIVER(cuFuncSetAttribute, kernel_->function, attribute, static_cast<int>(bytes));
      kernel_->shared_bytes = bytes;
    }
  }

  mx::cu::CommandEncoder& to_; // MLX's encoder
  CudaKernel* kernel_{nullptr};
  // `places_` says, by buffer index, where in `bytes_` each bound value is. `memory_` has pairs:
  // the index and the offset of threadgroup memory. The vectors keep their capacity from one
  // dispatch to the next.
  std::array<Place, MOST_BUFFERS> places_{};
  std::vector<uint8_t> bytes_;
  std::vector<std::pair<uint32_t, uint32_t>> memory_;
  std::vector<const void*> told_; // the buffers that MLX knows as inputs of this dispatch
  uint32_t shared_{0};            // bytes of threadgroup memory
  std::vector<uint8_t> values_;
  std::vector<void*> pointers_;
};

} // namespace

std::unique_ptr<Encoder> cuda_encoder(const mx::Stream& stream) {
  return is_cuda(stream) ? std::make_unique<CudaEncoder>(stream) : nullptr;
}

void construct_cuda_encoders() {
  if (!has_device_memory()) {
    return; // MLX's library for CPUs lacks this function
  }
  try {
    mx::cu::get_command_encoder(mx::Stream(-1, mx::Device::gpu)); // constructs the list
  } catch (const std::exception&) {
    // This error is expected, because MLX has no stream with index -1. MLX constructs the list
    // before it throws.
  }
}

bool is_cuda(const mx::Stream& stream) {
  return stream.device == mx::Device::gpu;
}

bool is_graph_full(const mx::Stream& stream) {
  return mx::cu::get_command_encoder(stream).needs_commit();
}

void hand_over_graph(const mx::Stream& stream, std::function<void()> done) {
  auto& encoder = mx::cu::get_command_encoder(stream);
  encoder.add_completed_handler(std::move(done));
  encoder.commit();
}

bool plans_for_nvidia(const mx::Stream& stream) {
  return is_cuda(stream) && architecture(mx::cu::get_command_encoder(stream).device()) >= 80;
}

void plan_anew(Launch& launch, uint32_t most_threads, const mx::Stream& stream) {
  if (launch.rows && is_cuda(stream)) {
    plan_cuda_rows(launch, most_threads);
  }
}

NvidiaLimits nvidia_limits(const mx::Stream& stream) {
  auto device = mx::cu::get_command_encoder(stream).device().cuda_device();
  auto of_device = [device](CUdevice_attribute attribute) {
    int value;
    CUDA_DRIVER(cuDeviceGetAttribute, &value, attribute, device);
    return static_cast<uint32_t>(value);
  };
  return {
      of_device(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
      of_device(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)};
}

bool has_device_memory() {
  static const bool has = mx::is_available(mx::Device::gpu);
  return has;
}

void prefetch_cuda(const std::vector<mx::array>& arrays) {
  constexpr size_t page = 4096;
  auto& encoder = mx::cu::get_command_encoder(mx::default_stream(mx::Device::gpu));
  auto& device = encoder.device();
  if (!device.managed_memory() || !device.concurrent_managed_access()) {
    return;
  }
  device.make_current();
  size_t room, total;
  CUDA_DRIVER(cuMemGetInfo_v2, &room, &total);
  CUmemLocation gpu{CU_MEM_LOCATION_TYPE_DEVICE, {device.cuda_device()}};
  for (const auto& array : arrays) {
    if (!array.is_available() || !array.data_shared_ptr()) {
      continue;
    }
    auto* buffer = static_cast<const mx::cu::CudaBuffer*>(array.buffer().ptr());
    if (!buffer || buffer->device >= 0 || buffer->size < page || buffer->size > room) {
      continue;
    }
    room -= buffer->size;
    auto at = reinterpret_cast<CUdeviceptr>(buffer->data);
    CUDA_DRIVER(cuMemPrefetchAsync_v2, at, buffer->size, gpu, 0, encoder.stream());
  }
}

std::string cuda_description() {
  return std::string(bridge::cuda_description());
}

} // namespace mlx_primitives
