// The plan of metal/nvidia/quantized_matmul_few.metal.
#include <bit>

#include "../../metal/quantized_matmul.h"
#include "ops/quantized_matmul.h"
#include "runtime/encoder.h"

namespace mlx_primitives {

namespace {

constexpr uint32_t TILE_ROWS = 16; // of weights for a SIMD group
constexpr uint32_t LONG_AXIS = 8192;

} // namespace

bool takes_few(mx::Dtype dtype, mx::Stream stream) {
  return dtype != mx::float32 && plans_for_nvidia(stream);
}

bool is_aligned(const mx::array& packed) {
  return packed.offset() % 16 == 0; // A GPU's buffers begin at a page.
}

Launch plan_few(
    QuantizedMatmulParams& params,
    const QuantizedFormat& format,
    const std::string& dtype,
    uint32_t max_threads) {
  uint32_t rows_of_tile = params.swiglu ? TILE_ROWS / 2 : TILE_ROWS;
  uint32_t most = std::bit_floor(max_threads / SIMD_WIDTH);
  // The splits decide the order of sums. A process may hold a part of the rows of weights, so the
  // order does not depend on their number.
  bool half = format.bits == 5 || format.bits == 6; // whose registers leave room for 8 groups
  uint32_t splits = std::min(most, half || params.axis < LONG_AXIS ? 8u : 16u);
  bool one = params.rows <= 2;
  // More rows of x take longer to stage, so more rows of weights share them.
  uint32_t simds = std::min(most, one ? splits : 16u);
  uint32_t band = one ? 2u : uint32_t{QUANTIZED_BAND};
  uint32_t texts = std::min(params.rows, band);
  uint32_t count = quantized_few_staged(params.rows, band, params.axis, splits);
  uint32_t floats = QUANTIZED_FEW_ZEROS + QUANTIZED_BAND + SIMD_WIDTH + simds * TILE_ROWS * band +
                    band * count / QUANTIZED_VALUES;
  params.splits = splits;
  auto name = std::string("mlxp_quantized_few_band") + (one ? "2_" : "8_");
  name += format.affine() ? "b" + std::to_string(format.bits) + "_g" +
                                std::to_string(std::min(format.group_size, 128))
                          : format.name();
  uint64_t blocks = 0;
  for (uint32_t i = 0; i < (params.swiglu ? 1 : params.parts); i++) { // swiglu's parts share blocks
    params.part_blocks[i] = static_cast<uint32_t>(blocks);
    blocks += ceil_div(params.part_columns[i], simds / splits * rows_of_tile);
  }
  Launch launch{
      name + dtype,
      {grid_count("quantized_linear", "threadgroups", blocks),
       static_cast<uint32_t>(ceil_div(params.rows, band)),
       1},
      {simds * SIMD_WIDTH, 1, 1},
      floats * 4 + texts * (count + QUANTIZED_FEW_PAD) * 2};
  launch.reads = 8;
  return launch;
}

} // namespace mlx_primitives
