#pragma once

#include "../../metal/rope_append.h"
#include "launch.h"
#include "rope.h"

namespace mlx_primitives {

inline Launch plan_rope_append(
    const RopeAppendParams& shape,
    std::string_view dtype,
    bool interleaved,
    bool explicit_freqs,
    uint32_t max_threads = MAX_THREADS) {
  uint64_t heads = uint64_t{shape.heads} + 2 * uint64_t{shape.kv_heads} - shape.first_head;
  uint64_t depth = shape.batch * ceil_div(heads, APPEND_HEADS);
  std::string kernel = "mlxp_rope_append_";
  kernel += interleaved ? "interleaved_" : "half_";
  kernel += explicit_freqs ? "freqs_" : "base_";
  kernel += dtype;
  return plan_box(
      "rope_append",
      std::move(kernel),
      {shape.columns, shape.length, depth},
      ROPE_GROUP,
      max_threads);
}

/** A copy of `count` elements, four a thread. */
inline Launch plan_state_copy(
    StateCopyParams& params, uint64_t count, std::string_view dtype, uint32_t max_threads) {
  uint64_t threads = ceil_div(count, READS);
  uint32_t group = std::clamp<uint32_t>(max_threads, 1, ROPE_GROUP);
  uint64_t columns = std::min<uint64_t>(ceil_div(threads, group), 1u << 16);
  params.count_low = static_cast<uint32_t>(count);
  params.count_high = static_cast<uint32_t>(count >> 32);
  params.row = static_cast<uint32_t>(columns * group);
  std::string kernel = "mlxp_rope_append_copy_";
  kernel += dtype;
  uint32_t rows = grid_count("rope_append", "threads", ceil_div(threads, params.row));
  return {std::move(kernel), {static_cast<uint32_t>(columns), rows, 1}, {group, 1, 1}, 0};
}

} // namespace mlx_primitives
