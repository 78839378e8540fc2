#pragma once

#include "../../metal/layer_norm.h"
#include "launch.h"

namespace mlx_primitives {

inline Launch plan_layer_norm(
    uint64_t rows, uint32_t axis, std::string_view dtype, uint32_t max_threads = MAX_THREADS) {
  auto suffix = "_" + std::string(dtype);
  return plan_rows("layer_norm", suffix, rows, axis, LAYER_NORM_SLOTS, max_threads);
}

} // namespace mlx_primitives
