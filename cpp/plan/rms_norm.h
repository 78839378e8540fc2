#pragma once

#include "../../metal/rms_norm.h"
#include "launch.h"

namespace mlx_primitives {

inline Launch plan_rms_norm(
    uint64_t rows,
    uint32_t axis,
    std::string_view dtype,
    bool weighted,
    uint32_t max_threads = MAX_THREADS) {
  std::string suffix = weighted ? "_weighted_" : "_";
  suffix += dtype;
  return plan_rows("rms_norm", suffix, rows, axis, RMS_NORM_SLOTS, max_threads);
}

} // namespace mlx_primitives
