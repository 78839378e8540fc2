#pragma once

#include "../../metal/rope.h"
#include "launch.h"

namespace mlx_primitives {

constexpr uint32_t ROPE_GROUP = 256; // threads; enough to hide latency, small enough to spread

/** Features that are not rotated only need threads where out is another buffer than x. */
constexpr uint32_t rope_columns(uint32_t features, uint32_t pairs, bool in_place) {
  return in_place ? pairs : pairs + static_cast<uint32_t>(ceil_div(features - 2 * pairs, 2));
}

inline Launch plan_rope(
    const RopeParams& shape,
    std::string_view dtype,
    bool interleaved,
    bool explicit_freqs,
    uint32_t max_threads = MAX_THREADS) {
  // A single position has too few threads to give each of them several heads.
  bool one_head = shape.length == 1 || shape.heads == 1;
  uint64_t depth = shape.batch * ceil_div(shape.heads, one_head ? 1u : unsigned{ROPE_HEADS});

  // Threads left for the axes to come; an axis that needs several groups gets equal ones.
  uint32_t left = std::clamp<uint32_t>(max_threads, 1, ROPE_GROUP);
  std::array<uint64_t, 3> threads = {shape.columns, shape.length, depth};
  Launch launch;
  for (int i = 0; i < 3; i++) {
    uint64_t groups = ceil_div(threads[i], left);
    uint64_t width = groups ? ceil_div(threads[i], groups) : 1;
    grid_count("rope", "threads", groups * width);
    launch.grid[i] = static_cast<uint32_t>(groups);
    launch.group[i] = static_cast<uint32_t>(width);
    left /= launch.group[i];
  }
  launch.threadgroup_bytes = 0;
  launch.kernel = "mlxp_rope_";
  launch.kernel += interleaved ? "interleaved_" : "half_";
  launch.kernel += explicit_freqs ? "freqs_" : "base_";
  launch.kernel += one_head ? "one_head_" : "";
  launch.kernel += dtype;
  return launch;
}

} // namespace mlx_primitives
