// This is the only file that calls Metal. In builds without Metal, no_metal.cpp replaces it.
#include <exception>

#include "mlx/backend/metal/device.h"
#include "runtime/encoder.h"
#include "runtime/metallib.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

namespace {

/**
 * Returns a library that MLX owns and caches by name. Its pointer is valid only in the current
 * call.
 */
MTL::Library* find_library(mx::metal::Device& device, const Dispatch& dispatch) {
  if (const auto* users = dispatch.library.get()) {
    // The simulator runs only source code, not metallibs.
    if (std::string path = simulating() ? "" : users->metallib(); !path.empty()) {
      auto* loaded = device.get_library(users->name(), path);
      users->loaded();
      return loaded;
    }
    return device.get_library(users->name(), [users] { return users->source(); });
  }
  static const Metallib metallib = find_metallib();
  if (metallib.path.empty()) {
    // Metal compiles each kernel separately when it is first used. The simulator compiles and
    // caches a file at a time, so it compiles all kernels of metal/<stem>.metal at once.
    std::string kernel = simulating() ? "" : dispatch.launch.kernel;
    return device.get_library("mlx_primitives_" + (kernel.empty() ? dispatch.stem : kernel), [&] {
      return embedded_metal_source(dispatch.stem, kernel);
    });
  }
  return device.get_library("mlx_primitives", metallib.path);
}

MTL::ComputePipelineState* pipeline(mx::metal::Device& device, const Dispatch& dispatch) {
  auto* library = find_library(device, dispatch);
  if (!dispatch.library) {
    return device.get_kernel(dispatch.launch.kernel, library);
  }
  mx::metal::MTLFCList constants;
  for (const auto& constant : dispatch.constants) {
    auto type = static_cast<MTL::DataType>(constant.data_type);
    constants.emplace_back(&constant.bits, type, constant.index);
  }
  return device.get_kernel(dispatch.launch.kernel, library, dispatch.pipeline, constants);
}

MTL::Size size(const std::array<uint32_t, 3>& extents) {
  return MTL::Size(extents[0], extents[1], extents[2]);
}

class MetalEncoder : public Encoder {
 public:
  explicit MetalEncoder(const mx::Stream& stream)
      : device_(mx::metal::device(stream.device)), stream_(stream) {}

  Kernel kernel(const Dispatch& dispatch) override {
    auto* state = pipeline(device_, dispatch);
    return {state, static_cast<uint32_t>(state->maxTotalThreadsPerThreadgroup())};
  }

  void begin(const Kernel& kernel) override {
    to().set_compute_pipeline_state(static_cast<MTL::ComputePipelineState*>(kernel.handle));
  }
  void reserve_threadgroup_memory(uint32_t index, uint32_t bytes) override {
    to().set_threadgroup_memory_length(bytes, static_cast<int>(index));
  }
  void bind_input(const mx::array& array, uint32_t index, int64_t offset) override {
    to().set_input_array(array, static_cast<int>(index), offset);
  }
  void bind_output(mx::array& array, uint32_t index, int64_t offset) override {
    to().set_output_array(array, static_cast<int>(index), offset);
  }
  void bind_bytes(const std::vector<uint8_t>& bytes, uint32_t index) override {
    to().set_bytes(bytes.data(), static_cast<int>(bytes.size()), static_cast<int>(index));
  }
  void run(const Launch& launch, bool grid_is_threads) override {
    if (grid_is_threads) {
      to().dispatch_threads(size(launch.grid), size(launch.group));
    } else {
      to().dispatch_threadgroups(size(launch.grid), size(launch.group));
    }
  }
  void keep(const mx::array& array) override {
    to().add_temporary(array);
  }

 private:
  mx::metal::CommandEncoder& to() {
    if (!encoder_) {
      encoder_ = &mx::metal::get_command_encoder(stream_);
    }
    return *encoder_;
  }

  mx::metal::Device& device_;
  mx::Stream stream_;
  mx::metal::CommandEncoder* encoder_{nullptr}; // MLX's encoder
};

} // namespace

std::unique_ptr<Encoder> metal_encoder(const mx::Stream& stream, const char*) {
  return std::make_unique<MetalEncoder>(stream);
}

void construct_metal_encoders() {
  try {
    mx::metal::get_command_encoder(mx::Stream(-1, mx::Device::gpu)); // constructs the list
  } catch (const std::exception&) {
    // This error is expected, because MLX has no stream with index -1. MLX constructs the list
    // before it throws.
  }
}

std::vector<MetalKernel> metal_kernels() {
  auto kernels = embedded_metal_kernels();
  std::erase_if(kernels, [](const auto& kernel) { return kernel.stem.starts_with("nvidia/"); });
  return kernels;
}

uint32_t metal_kernel_threads(const MetalKernel& kernel) {
  Dispatch dispatch;
  dispatch.stem = kernel.stem;
  dispatch.launch.kernel = kernel.name;
  auto* state = pipeline(mx::metal::device(mx::Device::gpu), dispatch);
  return static_cast<uint32_t>(state->maxTotalThreadsPerThreadgroup());
}

} // namespace mlx_primitives
