#pragma once

#include <bit>
#include <string>

#include "../../metal/attention.h"
#include "launch.h"

namespace mlx_primitives {

constexpr uint32_t ATTENTION_SPLIT_KEYS = 256;  // of a split, at least
constexpr uint32_t ATTENTION_SHORT_KEYS = 1024; // up to which one dispatch does it all
constexpr uint64_t ATTENTION_GROUPS = 1024;     // threadgroups that fill any GPU
constexpr uint32_t ATTENTION_SPLIT_THREADS = 256;
constexpr uint32_t ATTENTION_WHOLE_THREADS = 512;

inline bool attention_by_vector(const AttentionParams& params) {
  return uint64_t{params.group} * params.queries <= ATTENTION_VECTOR_ROWS;
}

/** Rows that a threadgroup of the matrix kernel takes, where a threadgroup may be that large. */
inline uint32_t attention_block_rows(uint32_t max_threads) {
  uint32_t simds = std::min<uint32_t>(max_threads / SIMD_WIDTH, ATTENTION_MATRIX_SIMDS);
  if (simds == 0) {
    throw std::invalid_argument("[attention] a threadgroup needs at least one SIMD group.");
  }
  return simds * ATTENTION_FRAGMENT;
}

/** Fills in how the keys from `first` to `end` are split and how lanes share them. */
inline void plan_attention_splits(AttentionParams& params) {
  params.lanes = std::bit_ceil(
      static_cast<uint32_t>(ceil_div(std::max(params.dim, 1u), unsigned{ATTENTION_PART})));
  uint32_t keys = params.end - params.first;
  uint64_t groups = uint64_t{params.batch} * params.kv_heads;
  if (!attention_by_vector(params)) {
    groups *= ceil_div(uint64_t{params.group} * params.queries, attention_block_rows(MAX_THREADS));
  }
  params.splits = 1;
  if (keys > ATTENTION_SHORT_KEYS && groups < ATTENTION_GROUPS) {
    uint64_t wanted = ceil_div(ATTENTION_GROUPS, std::max<uint64_t>(groups, 1));
    params.splits =
        static_cast<uint32_t>(std::min(wanted, ceil_div(keys, uint64_t{ATTENTION_SPLIT_KEYS})));
  }
  params.chunk = static_cast<uint32_t>(ceil_div(std::max(keys, 1u), params.splits));
  // No split without keys.
  params.splits = static_cast<uint32_t>(ceil_div(std::max(keys, 1u), params.chunk));
}

inline std::string attention_suffix(uint32_t bits, std::string_view dtype) {
  return (bits > 0 ? "_q" + std::to_string(bits) : std::string()) + "_" + std::string(dtype);
}

/** `bits` is 0 for plain keys and values. */
inline Launch plan_attention(
    const AttentionParams& params,
    uint32_t bits,
    std::string_view dtype,
    uint32_t itemsize,
    uint32_t max_threads = MAX_THREADS) {
  auto rows = grid_count("attention", "rows", uint64_t{params.group} * params.queries);
  uint32_t depth = grid_count(
      "attention", "splits of all batch entries", uint64_t{params.batch} * params.splits);
  auto suffix = attention_suffix(bits, dtype);
  if (attention_by_vector(params)) {
    uint32_t threads = params.splits > 1 ? ATTENTION_SPLIT_THREADS : ATTENTION_WHOLE_THREADS;
    // As many workers as keys are enough, each with a tile.
    uint64_t useful = ceil_div(params.chunk, unsigned{ATTENTION_TILE}) * params.lanes;
    threads =
        std::min(
            {threads,
             max_threads,
             round_up(
                 static_cast<uint32_t>(std::min<uint64_t>(useful, MAX_THREADS)), SIMD_WIDTH)}) /
        SIMD_WIDTH * SIMD_WIDTH;
    if (threads == 0) {
      throw std::invalid_argument("[attention] a threadgroup needs at least one SIMD group.");
    }
    uint32_t together = rows <= 1   ? 1
                        : rows <= 4 ? 4u
                                    : static_cast<uint32_t>(ATTENTION_VECTOR_ROWS);
    uint32_t row = params.lanes * ATTENTION_PART;
    // The queries first, then a maximum and a sum for each row and a row for each SIMD group.
    uint32_t floats = std::max(together * row, threads / SIMD_WIDTH * (2 * together + row));
    return {
        "mlxp_attention_vector_" + std::to_string(together) + suffix,
        {params.splits, params.kv_heads, params.batch},
        {threads, 1, 1},
        round_up(floats * static_cast<uint32_t>(sizeof(float)), 16)};
  }
  uint32_t block = attention_block_rows(max_threads);
  uint32_t features = params.dim <= 64    ? 64u
                      : params.dim <= 128 ? 128u
                                          : static_cast<uint32_t>(ATTENTION_DIM);
  uint32_t pitch = round_up(params.dim, ATTENTION_FRAGMENT) + 16 / itemsize;
  uint32_t keys = features > 128 ? 16 : 32;
  return {
      "mlxp_attention_matrix_" + std::to_string(features) + suffix,
      {static_cast<uint32_t>(ceil_div(rows, block)), params.kv_heads, depth},
      {block / ATTENTION_FRAGMENT * SIMD_WIDTH, 1, 1},
      round_up(keys * pitch * itemsize, 16)};
}

/** Joins what the splits left. */
inline Launch plan_attention_combine(
    const AttentionParams& params, std::string_view dtype, uint32_t max_threads = MAX_THREADS) {
  uint32_t together = std::min<uint32_t>(max_threads / SIMD_WIDTH, ATTENTION_COMBINED_ROWS);
  if (together == 0) {
    throw std::invalid_argument("[attention] a threadgroup needs at least one SIMD group.");
  }
  uint64_t rows = uint64_t{params.batch} * params.kv_heads * params.group * params.queries;
  uint32_t groups = grid_count("attention", "rows", ceil_div(rows, together));
  return {
      "mlxp_attention_combine" + attention_suffix(0, dtype),
      {groups, 1, 1},
      {together * SIMD_WIDTH, 1, 1},
      0};
}

} // namespace mlx_primitives
