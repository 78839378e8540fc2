#pragma once

#include "../../metal/masked_softmax.h"
#include "launch.h"

namespace mlx_primitives {

/** `op` is masked_softmax or masked_softmax_grad. */
inline Launch plan_masked_softmax(
    std::string_view op,
    uint64_t rows,
    uint32_t keys,
    std::string_view dtype,
    uint32_t max_threads = MAX_THREADS) {
  return plan_rows(op, "_" + std::string(dtype), rows, keys, MASKED_SOFTMAX_SLOTS, max_threads);
}

} // namespace mlx_primitives
