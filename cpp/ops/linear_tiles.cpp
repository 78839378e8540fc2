// Plans the dispatches of metal/nvidia/linear_tiles.metal.
#include <algorithm>

#include "../../metal/linear.h"
#include "ops/linear.h"
#include "runtime/encoder.h"

namespace mlx_primitives {

bool takes_few_rows(const LinearShape& shape, RowOrder order) {
  bool few = order == RowOrder::by_count ? shape.m <= LINEAR_FEW_ROWS : order == RowOrder::tokens;
  return few && !shape.columns;
}

bool takes_tiles(
    const LinearShape& shape, const mx::array& x, const mx::array& w, mx::Stream stream) {
  return x.itemsize() == 2 && shape.k > 0 && shape.k % 8 == 0 && x.offset() % 16 == 0 &&
         w.offset() % 16 == 0 && plans_for_nvidia(stream);
}

Launch plan_tiles(const LinearShape& shape, const std::string& suffix, uint32_t max_threads) {
  auto simds = std::min<uint32_t>(
      whole_simds("linear", max_threads) / SIMD_WIDTH, uint32_t{LINEAR_TILE_SIMDS});
  grid_count("linear", "elements of an axis", std::max({shape.m, shape.n, shape.k}));
  return {
      "mlxp_linear_tiles" + suffix,
      {grid_count("linear", "blocks of columns", ceil_div(shape.n, LINEAR_TILE_ROWS)),
       grid_count("linear", "blocks of rows", ceil_div(shape.m, LINEAR_FEW_ROWS)),
       grid_count("linear", "batch entries", shape.batch)},
      {simds * SIMD_WIDTH, 1, 1},
      simds * LINEAR_TILE_ROWS * LINEAR_FEW_ROWS * static_cast<uint32_t>(sizeof(float))};
}

} // namespace mlx_primitives
