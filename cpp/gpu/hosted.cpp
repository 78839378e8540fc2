#include "ops/hosted.h"

#include "gpu/launch.h"
#include "mlx-primitives/src/ffi/hosted.rs.h"

namespace mlx_primitives {

namespace {

MTL::Library* library(mx::metal::Device& device, const bridge::LibraryHandle& handle) {
  std::string name(handle.name());
  // The simulator runs sources alone.
  if (std::string path = simulating() ? "" : std::string(handle.metallib()); !path.empty()) {
    auto* loaded = device.get_library(name, path);
    handle.loaded();
    return loaded;
  }
  return device.get_library(name, [&handle] { return std::string(handle.source()); });
}

MTL::ComputePipelineState* hosted_pipeline(
    mx::metal::Device& device, const bridge::HostedLaunch& launch) {
  mx::metal::MTLFCList constants;
  for (const auto& constant : launch.constants) {
    auto type = static_cast<MTL::DataType>(constant.data_type);
    constants.emplace_back(&constant.bits, type, constant.index);
  }
  return device.get_kernel(
      std::string(launch.kernel),
      library(device, *launch.library),
      std::string(launch.pipeline),
      constants);
}

uint32_t threads(const bridge::HostedLaunch& launch) {
  return launch.group[0] * launch.group[1] * launch.group[2];
}

void encode(
    mx::metal::CommandEncoder& encoder,
    const bridge::HostedLaunch& launch,
    MTL::ComputePipelineState* state,
    const std::vector<mx::array>& inputs,
    std::vector<mx::array>& outputs) {
  encoder.set_compute_pipeline_state(state);
  for (const auto& memory : launch.threadgroup) {
    encoder.set_threadgroup_memory_length(memory.bytes, memory.index);
  }
  for (const auto& binding : launch.bindings) {
    int index = static_cast<int>(binding.index);
    switch (binding.buffer) {
      case bridge::HostedBuffer::Input:
        encoder.set_input_array(inputs.at(binding.array), index);
        break;
      case bridge::HostedBuffer::Output:
        encoder.set_output_array(outputs.at(binding.array), index);
        break;
      case bridge::HostedBuffer::Written:
        encoder.set_input_array(outputs.at(binding.array), index);
        break;
      case bridge::HostedBuffer::Parameters:
        encoder.set_bytes(binding.bytes.data(), static_cast<int>(binding.bytes.size()), index);
        break;
    }
  }
  MTL::Size grid(launch.grid[0], launch.grid[1], launch.grid[2]);
  MTL::Size group(launch.group[0], launch.group[1], launch.group[2]);
  if (launch.grid_is_threads) {
    encoder.dispatch_threads(grid, group);
  } else {
    encoder.dispatch_threadgroups(grid, group);
  }
}

} // namespace

void Hosted::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  size_t elements = allocate_outputs(inputs, outputs);
  if (elements == 0) {
    return;
  }
  auto& device = mx::metal::device(stream().device);
  // A pipeline that allows fewer threads than were planned for makes the launches again.
  for (uint32_t limit = MAX_THREADS;;) {
    auto launches = bridge::hosted_launches(**op_, inputs, outputs, limit);
    std::vector<MTL::ComputePipelineState*> states;
    uint32_t allowed = limit;
    uint32_t planned = 0;
    for (const auto& launch : launches) {
      states.push_back(hosted_pipeline(device, launch));
      auto most = static_cast<uint32_t>(states.back()->maxTotalThreadsPerThreadgroup());
      if (threads(launch) > most) {
        allowed = std::min(allowed, most);
        planned = std::max(planned, threads(launch));
      }
    }
    if (planned == 0) {
      auto& encoder = mx::metal::get_command_encoder(stream());
      for (size_t i = 0; i < launches.size(); ++i) {
        encode(encoder, launches[i], states[i], inputs, outputs);
      }
      return;
    }
    if (allowed >= limit) {
      refuse(name(), "expected a launch of at most ", allowed, " threads a group, got ", planned);
    }
    limit = allowed;
  }
}

} // namespace mlx_primitives
