#pragma once

#include "../../metal/reduce.h"
#include "launch.h"

namespace mlx_primitives {

/** How rows are cut: a threadgroup for each piece. One piece takes one dispatch, more take two. */
struct ReduceSplit {
  uint32_t pieces;
  uint32_t piece;
};

inline ReduceSplit split_reduce(uint64_t rows, uint64_t axis) {
  constexpr uint64_t countable = 1u << 31; // kernels step through a piece in 32 bits
  bool whole = axis <= 2 * REDUCE_PIECE || (rows >= REDUCE_MANY_ROWS && axis <= countable);
  if (whole) {
    return {1, static_cast<uint32_t>(axis)};
  }
  // Whole SIMD groups of quads, so that every piece starts as its row does.
  uint64_t piece = std::max<uint64_t>(REDUCE_PIECE, ceil_div(axis, REDUCE_PIECES));
  piece = ceil_div(piece, SIMD_ROW) * SIMD_ROW;
  if (piece > countable) {
    throw std::invalid_argument("[reduce] more elements than a Metal kernel can count.");
  }
  return {static_cast<uint32_t>(ceil_div(axis, piece)), static_cast<uint32_t>(piece)};
}

/** One dispatch that folds `pieces` pieces of `length` elements to one number each. */
inline Launch plan_reduce(
    uint64_t pieces,
    uint32_t length,
    std::string_view fold,
    std::string_view from,
    std::string_view to,
    uint32_t max_threads = MAX_THREADS) {
  max_threads = std::min(max_threads, MAX_THREADS) / SIMD_WIDTH * SIMD_WIDTH;
  if (max_threads == 0) {
    throw std::invalid_argument("[reduce] a threadgroup needs at least one SIMD group.");
  }
  uint32_t count = grid_count("reduce", "pieces", pieces);
  auto kernel = [&](std::string_view form) {
    std::string name = "mlxp_reduce_" + std::string(form) + "_" + std::string(fold) + "_";
    return name + std::string(from) + "_" + std::string(to);
  };
  if (from == to && length <= REDUCE_SIMD_ROW) {
    uint32_t together = std::min<uint32_t>(ROWS_PER_GROUP, max_threads / SIMD_WIDTH);
    together = std::clamp<uint32_t>(count, 1, together);
    auto groups = static_cast<uint32_t>(ceil_div(count, together));
    return {kernel("simd"), {groups, 1, 1}, {together * SIMD_WIDTH, 1, 1}, 0};
  }
  uint64_t quads = std::clamp<uint64_t>(ceil_div(length, READS), 1, max_threads);
  uint32_t threads = round_up(static_cast<uint32_t>(quads), SIMD_WIDTH);
  // Metal wants multiples of 16 bytes.
  uint32_t bytes = round_up(REDUCE_SLOTS * (threads / SIMD_WIDTH) * sizeof(float), 16);
  return {kernel("group"), {count, 1, 1}, {threads, 1, 1}, bytes};
}

} // namespace mlx_primitives
