#pragma once

#include "../../metal/logsumexp.h"
#include "launch.h"

namespace mlx_primitives {

/** With `subtract` the logarithm is taken off the row: log-softmax. */
inline Launch plan_logsumexp(
    uint64_t rows,
    uint32_t axis,
    std::string_view dtype,
    bool subtract,
    uint32_t max_threads = MAX_THREADS) {
  const std::string suffix = (subtract ? "_subtracted_" : "_") + std::string(dtype);
  auto launch = plan_rows("logsumexp", suffix, rows, axis, LOGSUMEXP_SLOTS, max_threads);
  if (!subtract && axis > SIMD_ROW) {
    // Nothing has to be kept for a second pass, so one form does for every length.
    launch.kernel = "mlxp_logsumexp_looped" + suffix;
  }
  return launch;
}

} // namespace mlx_primitives
