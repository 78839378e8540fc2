#pragma once

#include "../../metal/quantized_matmul.h"
#include "launch.h"

namespace mlx_primitives {

/** Threadgroups along the columns, `per_block` of them each; writes where each part begins. */
inline uint32_t place_quantized_parts(QuantizedMatmulParams& params, uint32_t per_block) {
  uint64_t blocks = 0;
  for (uint32_t i = 0; i < params.parts; i++) {
    params.part_blocks[i] = static_cast<uint32_t>(blocks);
    blocks += ceil_div(params.part_columns[i], per_block);
    if (params.swiglu) {
      break; // both parts share their blocks
    }
  }
  return grid_count("quantized_matmul", "threadgroups", blocks);
}

/**
 * One row of x, a band of a few, or tiles of many. A threadgroup that cannot hold the tile's four
 * SIMD groups takes bands. Tiles want x normalised before.
 */
inline Launch plan_quantized_matmul(
    QuantizedMatmulParams& params,
    std::string_view format,
    std::string_view dtype,
    uint32_t element_bytes,
    uint32_t max_threads = MAX_THREADS) {
  if (max_threads < SIMD_WIDTH) {
    throw std::invalid_argument("[quantized_matmul] a threadgroup needs at least one SIMD group.");
  }
  auto launch = [&](std::string_view form,
                    uint32_t columns,
                    uint32_t rows,
                    uint32_t threads,
                    uint32_t bytes) {
    std::string kernel = "mlxp_quantized_matmul_" + std::string(form) + "_" + std::string(format);
    uint32_t across = place_quantized_parts(params, columns);
    uint32_t down = static_cast<uint32_t>(ceil_div(params.rows, rows));
    return Launch{kernel + "_" + std::string(dtype), {across, down, 1}, {threads, 1, 1}, bytes};
  };
  if (params.rows > QUANTIZED_BAND && max_threads >= QUANTIZED_TILE_THREADS) {
    uint32_t products = QUANTIZED_TILE * QUANTIZED_TILE * sizeof(float);
    uint32_t staged = 2 * QUANTIZED_TILE * QUANTIZED_TILE_PITCH * element_bytes;
    uint32_t bytes = staged + products * (params.swiglu ? 2 : 1);
    return launch("tile", QUANTIZED_TILE, QUANTIZED_TILE, QUANTIZED_TILE_THREADS, bytes);
  }
  // Each threadgroup reads x once: large ones for many columns, small ones that few columns still
  // fill the GPU.
  uint32_t simds = std::min<uint32_t>(params.columns < 2048 ? 4 : 8, max_threads / SIMD_WIDTH);
  uint32_t columns = simds * (params.swiglu ? QUANTIZED_ROWS / 2 : QUANTIZED_ROWS);
  uint32_t bytes = QUANTIZED_BAND * sizeof(float) + SIMD_WIDTH * sizeof(float) + QUANTIZED_STAGED;
  return params.rows == 1 ? launch("row", columns, 1, simds * SIMD_WIDTH, bytes)
                          : launch("band", columns, QUANTIZED_BAND, simds * SIMD_WIDTH, bytes);
}

} // namespace mlx_primitives
