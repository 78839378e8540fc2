#pragma once

#include "../../metal/linear.h"
#include "launch.h"

namespace mlx_primitives {

/** x is [batch, m, k]; w is [n, k], or [k, n] if `columns`, for one batch entry. */
struct LinearShape {
  uint64_t batch;
  uint64_t m;
  uint64_t n;
  uint64_t k;
  bool columns;
};

inline Launch plan_linear(
    const LinearShape& shape,
    std::string_view dtype,
    uint32_t item_bytes,
    uint32_t max_threads = MAX_THREADS) {
  grid_count("linear", "elements of an axis", std::max({shape.m, shape.n, shape.k}));
  auto batch = grid_count("linear", "batch entries", shape.batch);
  const uint32_t simds = std::min(max_threads, MAX_THREADS) / SIMD_WIDTH;
  if (simds == 0) {
    throw std::invalid_argument("[linear] a threadgroup needs at least one SIMD group.");
  }
  auto groups = [](uint64_t extent, uint32_t part) {
    return static_cast<uint32_t>(ceil_div(extent, part));
  };
  std::string suffix = "_" + std::string(dtype);
  if (!shape.columns && shape.m <= LINEAR_FEW_ROWS) {
    uint32_t together = std::min<uint32_t>(simds, LINEAR_SIMDS);
    together = std::clamp<uint32_t>(groups(shape.n, LINEAR_SIMD_ROWS), 1, together);
    const char* rows = shape.m <= 1 ? "1" : shape.m <= 2 ? "2" : shape.m <= 4 ? "4" : "8";
    return {
        "mlxp_linear_few" + std::string(rows) + suffix,
        {groups(shape.n, together * LINEAR_SIMD_ROWS), 1, batch},
        {together * SIMD_WIDTH, 1, 1},
        LINEAR_STAGED * sizeof(float)};
  }
  // Squares of a SIMD group across and down: one where the others would be padding.
  const uint32_t wide = simds >= 2 && shape.n > LINEAR_SQUARE ? 2 : 1;
  const uint32_t high = simds >= 4 && wide == 2 && shape.m > LINEAR_SQUARE ? 2 : 1;
  const uint32_t tall = high * LINEAR_SQUARE;
  const uint32_t broad = wide * LINEAR_SQUARE;
  const uint32_t x_tile = tall * (LINEAR_DEPTH_BYTES + LINEAR_PAD_BYTES);
  const uint32_t w_tile =
      shape.columns ? LINEAR_DEPTH_BYTES / item_bytes * (broad * item_bytes + LINEAR_PAD_BYTES)
                    : broad * (LINEAR_DEPTH_BYTES + LINEAR_PAD_BYTES);
  const uint32_t strips = high * wide * 8 * LINEAR_SQUARE * sizeof(float);
  std::string kernel = shape.columns ? "mlxp_linear_columns_" : "mlxp_linear_tiled_";
  kernel += std::to_string(high) + "x" + std::to_string(wide);
  return {
      kernel + suffix,
      {groups(shape.n, broad), groups(shape.m, tall), batch},
      {high * wide * SIMD_WIDTH, 1, 1},
      std::max(round_up(x_tile + w_tile, 16), strips)};
}

} // namespace mlx_primitives
