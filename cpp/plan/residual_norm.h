#pragma once

#include "../../metal/residual_norm.h"
#include "launch.h"

namespace mlx_primitives {

/** Centered is layer normalisation, else RMS. */
inline Launch plan_residual_norm(
    uint64_t rows,
    uint32_t axis,
    std::string_view dtype,
    bool centered,
    uint32_t max_threads = MAX_THREADS) {
  std::string suffix = centered ? "_layer_" : "_rms_";
  suffix += dtype;
  return plan_rows("residual_norm", suffix, rows, axis, RESIDUAL_NORM_SLOTS, max_threads);
}

} // namespace mlx_primitives
