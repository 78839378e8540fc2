// Plans the dispatches of metal/nvidia/attention_few.metal.
#include <bit>

#include "ops/attention.h"
#include "runtime/encoder.h"

namespace mlx_primitives {

namespace {

constexpr uint32_t FEW_QUERY_ROWS = 8;  // rows in a block
constexpr uint32_t FEW_QUERY_SIMDS = 4; // most SIMD groups per threadgroup
constexpr uint32_t FEW_COMBINING_THREADS = 256;
constexpr uint32_t FEW_COMBINED_PARTS = 16; // most parts of a row's splits

bool rows_aligned(const mx::array& flat, const AttentionView& view) {
  auto size = static_cast<int64_t>(flat.itemsize());
  bool aligned = view.strides[3] == 1 && (flat.offset() + view.start * size) % 16 == 0;
  for (int axis = 0; axis < 3; ++axis) {
    aligned = aligned && view.strides[axis] * size % 16 == 0;
  }
  return aligned;
}

} // namespace

bool takes_few_queries(
    const AttentionParams& params,
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    mx::Stream stream) {
  bool features = params.dim == 64 || params.dim == 128 || params.dim == 256;
  return features && params.value_dim == params.dim && q.itemsize() == 2 &&
         k.dtype() == q.dtype() && plans_for_nvidia(stream) && rows_aligned(q, params.q) &&
         rows_aligned(k, params.k[0]) && rows_aligned(v, params.v[0]);
}

Launch plan_few_queries(
    const AttentionParams& params, const std::string& type, uint32_t max_threads) {
  uint32_t simds =
      std::min(std::bit_floor(whole_simds("attention", max_threads) / SIMD_WIDTH), FEW_QUERY_SIMDS);
  auto rows = uint64_t{params.group} * params.queries;
  auto together = static_cast<uint32_t>(std::min<uint64_t>(rows, FEW_QUERY_ROWS));
  // Space for the maxima and sums of each SIMD group, for three numbers per row, and for the output
  // rows of each SIMD group.
  uint32_t floats = 2 * FEW_QUERY_ROWS * simds + 3 * FEW_QUERY_ROWS + simds * together * params.dim;
  auto blocks =
      grid_count("attention", "blocks of rows", params.batch * ceil_div(rows, FEW_QUERY_ROWS));
  return {
      "mlxp_attention_few_" + std::to_string(params.dim) + type,
      {params.splits, params.kv_heads, blocks},
      {simds * SIMD_WIDTH, 1, 1},
      floats * static_cast<uint32_t>(sizeof(float))};
}

Launch plan_few_splits(
    const AttentionParams& params, const std::string& type, uint32_t max_threads) {
  uint64_t rows = uint64_t{params.batch} * params.kv_heads * params.group * params.queries;
  uint32_t threads = std::min(std::bit_floor(max_threads), FEW_COMBINING_THREADS);
  if (threads < params.value_dim / 4) {
    refuse("attention", "expected threadgroups of ", params.value_dim / 4, ", got ", max_threads);
  }
  return {
      "mlxp_attention_few_combine" + type,
      {grid_count("attention", "rows", rows), 1, 1},
      {threads, 1, 1},
      (FEW_COMBINED_PARTS + 4 * threads) * static_cast<uint32_t>(sizeof(float))};
}

} // namespace mlx_primitives
