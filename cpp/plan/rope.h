#pragma once

#include "../../metal/rope.h"
#include "launch.h"

namespace mlx_primitives {

constexpr uint32_t ROPE_GROUP = 256; // threads; enough to hide latency, small enough to spread

/** Features that are not rotated only need threads where out is another buffer than x. */
constexpr uint32_t rope_columns(uint32_t features, uint32_t pairs, bool in_place) {
  return in_place ? pairs : pairs + static_cast<uint32_t>(ceil_div(features - 2 * pairs, 2));
}

/** One thread for each point of a box, in groups of at most `width` threads. */
inline Launch plan_box(
    std::string_view op,
    std::string kernel,
    std::array<uint64_t, 3> threads,
    uint32_t width,
    uint32_t max_threads) {
  // Threads left for the axes to come; an axis that needs several groups gets equal ones.
  uint32_t left = std::clamp<uint32_t>(max_threads, 1, width);
  Launch launch;
  for (int i = 0; i < 3; i++) {
    uint64_t groups = ceil_div(threads[i], left);
    uint64_t extent = groups ? ceil_div(threads[i], groups) : 1;
    grid_count(op, "threads", groups * extent);
    launch.grid[i] = static_cast<uint32_t>(groups);
    launch.group[i] = static_cast<uint32_t>(extent);
    left /= launch.group[i];
  }
  launch.threadgroup_bytes = 0;
  launch.kernel = std::move(kernel);
  return launch;
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

  std::string kernel = "mlxp_rope_";
  kernel += interleaved ? "interleaved_" : "half_";
  kernel += explicit_freqs ? "freqs_" : "base_";
  kernel += one_head ? "one_head_" : "";
  kernel += dtype;
  return plan_box(
      "rope", std::move(kernel), {shape.columns, shape.length, depth}, ROPE_GROUP, max_threads);
}

} // namespace mlx_primitives
