#pragma once

#include "../../metal/softmax.h"
#include "launch.h"

namespace mlx_primitives {

inline Launch plan_softmax(
    uint64_t rows, uint32_t axis, std::string_view dtype, uint32_t max_threads = MAX_THREADS) {
  return plan_rows("softmax", "_" + std::string(dtype), rows, axis, SOFTMAX_SLOTS, max_threads);
}

} // namespace mlx_primitives
