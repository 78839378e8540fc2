// Plans the dispatches of metal/nvidia/quantized_matmul_few.metal.
#include <bit>

#include "../../metal/quantized_matmul.h"
#include "ops/quantized_matmul.h"
#include "runtime/encoder.h"

namespace mlx_primitives {

namespace {

constexpr uint32_t TILE_ROWS = 16; // rows of weights for a SIMD group
constexpr uint32_t LONG_AXIS = 8192;
constexpr uint32_t WALKING = uint32_t{QUANTIZED_WALK_THREADS} / SIMD_WIDTH; // per core

} // namespace

bool takes_few(mx::Dtype dtype, mx::Stream stream) {
  return dtype != mx::float32 && plans_for_nvidia(stream);
}

bool is_aligned(const mx::array& packed) {
  return packed.offset() % 16 == 0; // a GPU's buffers begin at a page boundary
}

Launch plan_few(
    QuantizedMatmulParams& params,
    const QuantizedFormat& format,
    const std::string& dtype,
    uint32_t max_threads,
    mx::Stream stream) {
  uint32_t rows_of_tile = params.swiglu ? TILE_ROWS / 2 : TILE_ROWS;
  const auto limits = nvidia_limits(stream);
  uint32_t most = std::bit_floor(max_threads / SIMD_WIDTH);
  uint64_t tiles = 0;
  for (uint32_t i = 0; i < (params.swiglu ? 1 : params.parts); i++) { // swiglu's parts share tiles
    tiles += ceil_div(params.part_columns[i], rows_of_tile);
  }
  // The number of splits along the axis decides the order of addition. A process may have only some
  // of the weight rows, so the number of splits must not depend on the number of weight rows.
  bool half = format.bits == 5 || format.bits == 6; // registers allow 8 SIMD groups
  uint32_t splits = std::min(most, half || params.axis < LONG_AXIS ? 8u : 16u);
  bool one = params.rows <= 2;
  uint32_t band = one ? 2u : uint32_t{QUANTIZED_BAND};
  uint64_t bands = ceil_div(params.rows, band);
  uint32_t turns = 1;
  uint32_t simds = splits;
  bool walks = false;
  if (one) {
    // If there are more tiles than the cores can run at once, a threadgroup copies x once and walks
    // over several tiles.
    bool lean = !format.affine() || format.bits == 2 || format.bits == 4; // at most 64 registers
    uint32_t of_core = (lean ? 32u : WALKING) / splits;
    bool whole = quantized_few_staged(params.rows, band, params.axis, splits) >= params.axis;
    bool enough = format.bits != 5 && splits <= WALKING; // 5 bits need too many registers
    walks = whole && enough && tiles > uint64_t{limits.cores} * of_core;
  } else {
    // With more rows of x, copying x to threadgroup memory takes longer. So more rows of weights
    // share the copied rows, while every core still has a threadgroup.
    simds = std::min(most, 16u);
    bool four = (format.bits == 4 || format.bits == 8) && format.affine() && format.group_size > 32;
    uint32_t most_turns = std::min(splits, four ? 4u : 2u);
    auto groups = [&] { return bands * ceil_div(tiles, simds * turns / splits); };
    while (turns < most_turns && groups() > limits.cores) {
      turns *= 2;
    }
  }
  uint32_t texts = std::min(params.rows, band);
  uint32_t count = quantized_few_staged(params.rows, band, params.axis, splits);
  auto bytes = [&] {
    uint32_t sums = simds * turns * TILE_ROWS * band * (walks ? 2 : 1);
    uint32_t floats = QUANTIZED_FEW_ZEROS + QUANTIZED_BAND + QUANTIZED_FEW_SLOTS + sums +
                      band * count / QUANTIZED_VALUES;
    return floats * 4 + texts * (count + QUANTIZED_FEW_PAD) * 2;
  };
  while (simds * turns > splits && bytes() > limits.threadgroup_bytes) {
    simds /= 2;
  }
  uint32_t tiles_of_block = simds * turns / splits;
  uint64_t blocks = 0;
  for (uint32_t i = 0; i < (params.swiglu ? 1 : params.parts); i++) {
    params.part_blocks[i] = static_cast<uint32_t>(blocks);
    blocks += ceil_div(params.part_columns[i], tiles_of_block * rows_of_tile);
  }
  params.splits = splits;
  params.blocks = grid_count("quantized_linear", "threadgroups", blocks);
  auto name = std::string("mlxp_quantized_few_");
  name += walks ? "walk" : one ? "band2" : "band8_turns" + std::to_string(turns);
  name += "_";
  name += format.affine() ? "b" + std::to_string(format.bits) + "_g" +
                                std::to_string(std::min(format.group_size, 128))
                          : format.name();
  uint32_t columns =
      walks ? std::min(params.blocks, limits.cores * (WALKING / splits)) : params.blocks;
  Launch launch{
      name + dtype,
      {columns, static_cast<uint32_t>(bands), 1},
      {simds * SIMD_WIDTH, 1, 1},
      bytes()};
  launch.reads = 8;
  return launch;
}

} // namespace mlx_primitives
