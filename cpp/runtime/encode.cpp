#include "runtime/encode.h"

#include "runtime/encoder.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

namespace {

/** Allocates a temporary when it is first bound. */
void provide(Encoder& encoder, mx::array& array) {
  if (!array.has_primitive() && !array.data_shared_ptr()) {
    allocate(array);
    encoder.keep(array);
  }
}

void encode_one(Encoder& encoder, Dispatch& dispatch, const Kernel& kernel) {
  const auto& launch = dispatch.launch;
  encoder.begin(kernel);
  if (launch.threadgroup_bytes > 0) {
    encoder.reserve_threadgroup_memory(0, launch.threadgroup_bytes);
  }
  for (const auto& memory : dispatch.memory) {
    encoder.reserve_threadgroup_memory(memory.index, memory.bytes);
  }
  for (auto& binding : dispatch.bindings) {
    if (!binding.array) {
      encoder.bind_bytes(binding.bytes, binding.index);
      continue;
    }
    provide(encoder, *binding.array);
    if (binding.written) {
      encoder.bind_output(*binding.array, binding.index, binding.offset);
    } else {
      encoder.bind_input(*binding.array, binding.index, binding.offset);
    }
  }
  encoder.run(launch, dispatch.grid_is_threads);
}

} // namespace

void encode(
    const mx::Stream& stream,
    const char* op,
    const std::function<std::vector<Dispatch>(uint32_t)>& plan) {
  auto encoder = cuda_encoder(stream);
  if (!encoder) {
    encoder = metal_encoder(stream, op); // of metal_encoder.cpp
  }
  for (uint32_t limit = encoder->most_threads();;) {
    auto dispatches = plan(limit);
    std::vector<Kernel> kernels;
    uint32_t allowed = limit;
    uint32_t refused = 0; // the most threads per group that were planned but not allowed
    for (auto& dispatch : dispatches) {
      encoder->plan_anew(dispatch.launch, limit);
      kernels.push_back(encoder->kernel(dispatch));
      uint32_t most = kernels.back().max_threads;
      if (uint32_t planned = dispatch.launch.threads_per_group(); planned > most) {
        allowed = std::min(allowed, most);
        refused = std::max(refused, planned);
      }
    }
    if (refused == 0) {
      for (size_t i = 0; i < dispatches.size(); ++i) {
        encode_one(*encoder, dispatches[i], kernels[i]);
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
