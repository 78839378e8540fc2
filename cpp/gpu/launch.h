#pragma once

#include <functional>
#include <initializer_list>

#include "mlx/array.h"
#include "mlx/backend/metal/device.h"
#include "ops/common.h"
#include "plan/launch.h"

namespace mlx_primitives {

/** A launch and the pipeline of its kernel, which takes that many threads. */
struct Pipeline {
  Launch launch;
  MTL::ComputePipelineState* state;
};

/**
 * Plans a launch for a largest threadgroup. A kernel that needs many registers may allow
 * fewer threads than planned; the plan is then made again within that limit. The kernel is that
 * of metal/<stem>.metal.
 */
Pipeline pipeline(
    const mx::Stream& stream, const std::string& stem, const std::function<Launch(uint32_t)>& plan);

using Outputs = std::initializer_list<std::reference_wrapper<mx::array>>;

/** Opens the encoding: pipeline, threadgroup memory, then the inputs from buffer 0 on. */
void bind(
    mx::metal::CommandEncoder& encoder,
    const Pipeline& pipeline,
    std::initializer_list<std::reference_wrapper<const mx::array>> inputs);

void dispatch(mx::metal::CommandEncoder& encoder, const Launch& launch);

/** Encodes one dispatch. Buffers: the inputs, then the outputs, then the params. */
template <typename Params>
void encode(
    const mx::Stream& stream,
    const Pipeline& pipeline,
    std::initializer_list<std::reference_wrapper<const mx::array>> inputs,
    Outputs outputs,
    const Params& params) {
  auto& encoder = mx::metal::get_command_encoder(stream);
  bind(encoder, pipeline, inputs);
  int index = static_cast<int>(inputs.size());
  for (mx::array& output : outputs) {
    encoder.set_output_array(output, index++);
  }
  encoder.set_bytes(params, index);
  dispatch(encoder, pipeline.launch);
}

} // namespace mlx_primitives
