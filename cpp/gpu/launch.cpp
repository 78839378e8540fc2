#include "gpu/launch.h"

#include "gpu/metallib.h"

namespace mlx_primitives {

namespace {

/**
 * MLX keeps libraries by name and owns them, so ours is asked for by name each time and
 * no pointer to it is kept: clear_library() would free it under us.
 */
MTL::Library* library(mx::metal::Device& device, const std::string& stem) {
  static const Metallib metallib = find_metallib();
  if (metallib.path.empty()) { // a library for each stem: what is not used is not compiled
    return device.get_library(
        "mlx_primitives_" + stem, [&stem] { return embedded_metal_source(stem); });
  }
  return device.get_library("mlx_primitives", metallib.path);
}

} // namespace

Pipeline pipeline(
    const mx::Stream& stream,
    const std::string& stem,
    const std::function<Launch(uint32_t)>& plan) {
  auto& device = mx::metal::device(stream.device);
  auto* kernels = library(device, stem);
  uint32_t limit = MAX_THREADS;
  while (true) {
    Launch launch = plan(limit);
    auto* state = device.get_kernel(launch.kernel, kernels);
    auto allowed = static_cast<uint32_t>(state->maxTotalThreadsPerThreadgroup());
    if (launch.threads_per_group() <= allowed) {
      return {std::move(launch), state};
    }
    if (allowed >= limit) {
      throw std::runtime_error(
          "[mlx_primitives] " + launch.kernel + " has no plan for at most " +
          std::to_string(allowed) + " threads.");
    }
    limit = allowed;
  }
}

void bind(
    mx::metal::CommandEncoder& encoder,
    const Pipeline& pipeline,
    std::initializer_list<std::reference_wrapper<const mx::array>> inputs) {
  encoder.set_compute_pipeline_state(pipeline.state);
  if (uint32_t bytes = pipeline.launch.threadgroup_bytes) {
    encoder.set_threadgroup_memory_length(bytes, 0);
  }
  int index = 0;
  for (const mx::array& input : inputs) {
    encoder.set_input_array(input, index++);
  }
}

void dispatch(mx::metal::CommandEncoder& encoder, const Launch& launch) {
  auto& [x, y, z] = launch.grid;
  auto& [width, height, depth] = launch.group;
  encoder.dispatch_threadgroups(MTL::Size(x, y, z), MTL::Size(width, height, depth));
}

} // namespace mlx_primitives
