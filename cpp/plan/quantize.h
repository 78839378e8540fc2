#pragma once

#include "../../metal/quantize.h"
#include "launch.h"

namespace mlx_primitives {

constexpr uint32_t QUANTIZE_GROUP = 256; // threads; whole SIMD groups

/** Quantizes `groups` groups, or goes back. */
inline Launch plan_quantize(
    QuantizeParams& params,
    uint64_t groups,
    uint32_t group_size,
    uint32_t bits,
    bool back,
    std::string_view dtype,
    uint32_t max_threads = MAX_THREADS) {
  uint32_t width = std::min(max_threads, QUANTIZE_GROUP) / SIMD_WIDTH * SIMD_WIDTH;
  if (width == 0) {
    throw std::invalid_argument("[quantize] a threadgroup needs at least one SIMD group.");
  }
  params.threads = group_size / CODES;
  uint32_t threads = grid_count("quantize", "threads", groups * params.threads);
  params.groups = static_cast<uint32_t>(groups);
  auto count = static_cast<uint32_t>(ceil_div(threads, width));
  grid_count("quantize", "threads", uint64_t{count} * width);
  std::string kernel = back ? "mlxp_quantize_back_" : "mlxp_quantize_";
  kernel += std::to_string(bits) + "_";
  kernel += dtype;
  return {std::move(kernel), {count, 1, 1}, {width, 1, 1}, 0};
}

} // namespace mlx_primitives
