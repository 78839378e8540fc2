// The only file that calls Metal; no_metal.cpp replaces it in builds without Metal.
#include "runtime/encode.h"

#include "mlx/backend/metal/device.h"
#include "runtime/metallib.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

namespace {

/** MLX caches libraries by name and owns them, so no pointer to one outlives this call. */
MTL::Library* find_library(mx::metal::Device& device, const Dispatch& dispatch) {
  if (const auto* users = dispatch.library.get()) {
    // The simulator runs only sources.
    if (std::string path = simulating() ? "" : users->metallib(); !path.empty()) {
      auto* loaded = device.get_library(users->name(), path);
      users->loaded();
      return loaded;
    }
    return device.get_library(users->name(), [users] { return users->source(); });
  }
  static const Metallib metallib = find_metallib();
  if (metallib.path.empty()) {
    // Metal compiles each kernel when it is first used. The simulator caches compiled files, so it
    // compiles all kernels of a stem at once.
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

/** Allocates a temporary when it is first bound. */
void provide(mx::metal::CommandEncoder& encoder, mx::array& array) {
  if (!array.has_primitive() && !array.data_shared_ptr()) {
    allocate(array);
    encoder.add_temporary(array);
  }
}

void encode_one(
    mx::metal::CommandEncoder& encoder, Dispatch& dispatch, MTL::ComputePipelineState* state) {
  const auto& launch = dispatch.launch;
  encoder.set_compute_pipeline_state(state);
  if (launch.threadgroup_bytes > 0) {
    encoder.set_threadgroup_memory_length(launch.threadgroup_bytes, 0);
  }
  for (const auto& memory : dispatch.memory) {
    encoder.set_threadgroup_memory_length(memory.bytes, static_cast<int>(memory.index));
  }
  for (auto& binding : dispatch.bindings) {
    int index = static_cast<int>(binding.index);
    if (!binding.array) {
      encoder.set_bytes(binding.bytes.data(), static_cast<int>(binding.bytes.size()), index);
      continue;
    }
    provide(encoder, *binding.array);
    if (binding.written) {
      encoder.set_output_array(*binding.array, index, binding.offset);
    } else {
      encoder.set_input_array(*binding.array, index, binding.offset);
    }
  }
  MTL::Size grid(launch.grid[0], launch.grid[1], launch.grid[2]);
  MTL::Size group(launch.group[0], launch.group[1], launch.group[2]);
  if (dispatch.grid_is_threads) {
    encoder.dispatch_threads(grid, group);
  } else {
    encoder.dispatch_threadgroups(grid, group);
  }
}

} // namespace

void encode(
    const mx::Stream& stream,
    const char* op,
    const std::function<std::vector<Dispatch>(uint32_t)>& plan) {
  auto& device = mx::metal::device(stream.device);
  for (uint32_t limit = MAX_THREADS;;) {
    auto dispatches = plan(limit);
    std::vector<MTL::ComputePipelineState*> states;
    uint32_t allowed = limit;
    uint32_t refused = 0; // the most threads per group that were planned but not allowed
    for (const auto& dispatch : dispatches) {
      states.push_back(pipeline(device, dispatch));
      auto most = static_cast<uint32_t>(states.back()->maxTotalThreadsPerThreadgroup());
      if (uint32_t planned = dispatch.launch.threads_per_group(); planned > most) {
        allowed = std::min(allowed, most);
        refused = std::max(refused, planned);
      }
    }
    if (refused == 0) {
      auto& encoder = mx::metal::get_command_encoder(stream);
      for (size_t i = 0; i < dispatches.size(); ++i) {
        encode_one(encoder, dispatches[i], states[i]);
      }
      return;
    }
    if (allowed >= limit) {
      refuse(op, "expected a launch of at most ", allowed, " threads a group, got ", refused);
    }
    limit = allowed;
  }
}

} // namespace mlx_primitives
