#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

#include "../../metal/shared.h"

namespace mlx_primitives {

/** One dispatch: which kernel, how many threadgroups, of how many threads each. */
struct Launch {
  std::string kernel;
  std::array<uint32_t, 3> grid;
  std::array<uint32_t, 3> group;
  uint32_t threadgroup_bytes;

  uint32_t threads_per_group() const {
    return group[0] * group[1] * group[2];
  }
};

constexpr uint32_t MAX_THREADS = 1024; // of a threadgroup, on every Apple GPU

constexpr uint64_t ceil_div(uint64_t a, uint64_t b) {
  return (a + b - 1) / b;
}

constexpr uint32_t round_up(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(ceil_div(a, b)) * b;
}

/** Kernels count rows, threadgroups and threads along an axis of the grid in 32 bits. */
inline uint32_t grid_count(std::string_view op, std::string_view what, uint64_t count) {
  if (count > std::numeric_limits<uint32_t>::max()) {
    throw std::invalid_argument(
        "[" + std::string(op) + "] " + std::to_string(count) + " " + std::string(what) +
        " are more than a Metal kernel can count.");
  }
  return static_cast<uint32_t>(count);
}

/**
 * The kernels that reduce a row come in the same forms for every op:
 * simd (one SIMD group a row), row, row2, row4 (a threadgroup a row, 1, 2 or 4 quads a
 * thread) and looped (any length). `slots` is the scratch of a SIMD group, in floats.
 */
inline Launch plan_rows(
    std::string_view op,
    std::string_view suffix,
    uint64_t rows,
    uint32_t axis,
    uint32_t slots,
    uint32_t max_threads) {
  max_threads = std::min(max_threads, MAX_THREADS) / SIMD_WIDTH * SIMD_WIDTH;
  if (max_threads == 0) {
    throw std::invalid_argument(
        "[" + std::string(op) + "] a threadgroup needs at least one SIMD group.");
  }
  const uint32_t count = grid_count(op, "rows", rows);
  auto launch = [&](std::string_view form, uint32_t groups, uint32_t threads, uint32_t bytes) {
    std::string kernel = "mlxp_" + std::string(op) + "_" + std::string(form);
    return Launch{kernel + std::string(suffix), {groups, 1, 1}, {threads, 1, 1}, bytes};
  };
  if (axis <= SIMD_ROW) {
    uint32_t together = std::min<uint32_t>(ROWS_PER_GROUP, max_threads / SIMD_WIDTH);
    together = std::clamp<uint32_t>(count, 1, together);
    auto groups = static_cast<uint32_t>(ceil_div(count, together));
    return launch("simd", groups, together * SIMD_WIDTH, 0);
  }
  // Metal wants multiples of 16 bytes.
  auto scratch = [&](uint32_t threads) {
    return round_up(slots * (threads / SIMD_WIDTH) * sizeof(float), 16);
  };
  uint32_t threads = round_up(static_cast<uint32_t>(ceil_div(axis, READS)), SIMD_WIDTH);
  if (threads <= max_threads) {
    return launch("row", count, threads, scratch(threads));
  }
  // From here on as many threads as possible: MLX's looped kernels do the same, and the
  // number of threads decides the order of addition.
  std::string_view form = threads <= 2 * max_threads   ? "row2"
                          : threads <= 4 * max_threads ? "row4"
                                                       : "looped";
  return launch(form, count, max_threads, scratch(max_threads));
}

} // namespace mlx_primitives
