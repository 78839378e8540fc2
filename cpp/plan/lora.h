#pragma once

#include "../../metal/lora.h"
#include "launch.h"

namespace mlx_primitives {

/** The kernel that adds the correction to the product with the base. */
inline Launch plan_lora(
    const LoraParams& params, std::string_view dtype, uint32_t max_threads = MAX_THREADS) {
  uint32_t threads = std::min<uint32_t>(LORA_THREADS, max_threads);
  if (threads == 0) {
    throw std::invalid_argument("[lora] a threadgroup needs at least one thread.");
  }
  auto across = static_cast<uint32_t>(ceil_div(params.columns, threads));
  auto down = static_cast<uint32_t>(ceil_div(params.rows, LORA_ROWS));
  std::string kernel = "mlxp_lora_correct_" + std::string(dtype);
  return Launch{kernel, {across, down, 1}, {threads, 1, 1}, 0};
}

} // namespace mlx_primitives
