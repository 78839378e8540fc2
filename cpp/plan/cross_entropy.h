#pragma once

#include "../../metal/cross_entropy.h"
#include "launch.h"

namespace mlx_primitives {

inline Launch plan_cross_entropy(
    uint64_t rows, uint32_t classes, std::string_view dtype, uint32_t max_threads = MAX_THREADS) {
  const std::string suffix = "_" + std::string(dtype);
  auto launch = plan_rows("cross_entropy", suffix, rows, classes, CROSS_ENTROPY_SLOTS, max_threads);
  if (classes > SIMD_ROW) {
    // Nothing has to be kept for a second pass, so one form does for every length.
    launch.kernel = "mlxp_cross_entropy_looped" + suffix;
  }
  return launch;
}

/** No reductions are left: short rows share threadgroups, long ones are spread over several. */
inline Launch plan_cross_entropy_grad(
    uint64_t rows, uint32_t classes, std::string_view dtype, uint32_t max_threads = MAX_THREADS) {
  const std::string suffix = "_" + std::string(dtype);
  auto launch = plan_rows("cross_entropy_grad", suffix, rows, classes, 0, max_threads);
  if (classes > SIMD_ROW) {
    constexpr uint32_t enough = 256; // threads: more than that only wait for each other
    constexpr uint32_t share = static_cast<uint32_t>(READS) * CROSS_ENTROPY_QUADS;
    auto each = static_cast<uint32_t>(ceil_div(classes, share));
    uint32_t most = std::min(launch.group[0], enough);
    uint32_t threads = std::min(most, round_up(each, SIMD_WIDTH));
    launch.kernel = "mlxp_cross_entropy_grad_row" + suffix;
    launch.grid[1] = static_cast<uint32_t>(ceil_div(each, threads));
    launch.group[0] = threads;
  }
  return launch;
}

} // namespace mlx_primitives
