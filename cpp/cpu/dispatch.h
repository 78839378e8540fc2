// What the run_on_cpu of every primitive shares: hand a call of a Rust kernel to the stream.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"
#include "mlx/backend/cpu/encoder.h"
#include "ops/common.h"
#include "runtime/process.h"

namespace mlx_primitives {

inline const uint8_t* bytes(const mx::array& a) {
  return a.data<uint8_t>();
}

inline uint8_t* bytes(mx::array& a) {
  return a.data<uint8_t>();
}

inline bridge::Dtype kernel_dtype(const mx::array& a) {
  return static_cast<bridge::Dtype>(a.dtype().val());
}

/**
 * Runs the kernel call that `make` returns on the stream's thread. MLX keeps the buffers of the
 * primitive's inputs and outputs alive until then. Nothing runs for an output of no elements.
 */
template <typename Make>
void cpu_dispatch(mx::Stream stream, const mx::array& out, Make make) {
  if (out.size() == 0) {
    return;
  }
  mx::cpu::get_command_encoder(stream).dispatch([call = make()] {
    if (!abandoned()) {
      call();
    }
  });
}

} // namespace mlx_primitives
