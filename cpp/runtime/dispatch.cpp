#include "runtime/dispatch.h"

#include <sstream>
#include <stdexcept>

#include "mlx/utils.h"

namespace mlx_primitives {

uint32_t grid_count(std::string_view op, std::string_view what, uint64_t count) {
  if (count > std::numeric_limits<uint32_t>::max()) {
    throw std::invalid_argument(
        "[" + std::string(op) + "] " + std::to_string(count) + " " + std::string(what) +
        " are more than a Metal kernel can count.");
  }
  return static_cast<uint32_t>(count);
}

uint32_t whole_simds(std::string_view op, uint32_t most) {
  uint32_t threads = std::min(most, MAX_THREADS) / SIMD_WIDTH * SIMD_WIDTH;
  if (threads == 0) {
    throw std::invalid_argument(
        "[" + std::string(op) + "] a threadgroup needs at least one SIMD group.");
  }
  return threads;
}

mx::array temporary(mx::Shape shape, mx::Dtype dtype) {
  return mx::array(std::move(shape), dtype, nullptr, {});
}

std::string type_suffix(const mx::array& x) {
  switch (x.dtype().val()) { // string streams would be slower than the rest
    case mx::Dtype::Val::float32:
      return "_float32";
    case mx::Dtype::Val::float16:
      return "_float16";
    case mx::Dtype::Val::bfloat16:
      return "_bfloat16";
    default:
      break;
  }
  std::ostringstream suffix;
  suffix << "_" << x.dtype();
  return suffix.str();
}

Launch plan_rows(
    std::string_view op,
    std::string_view suffix,
    Rows rows,
    uint32_t slots,
    uint32_t max_threads,
    uint32_t quads) {
  max_threads = whole_simds(op, max_threads);
  const uint32_t count = grid_count(op, "rows", rows.count);
  auto launch = [&](std::string_view form, uint32_t groups, uint32_t threads, uint32_t bytes) {
    std::string kernel = "mlxp_" + std::string(op) + "_" + std::string(form);
    Launch made{kernel + std::string(suffix), {groups, 1, 1}, {threads, 1, 1}, bytes};
    made.rows = RowsPlan{std::string(op), std::string(suffix), rows, slots, quads};
    return made;
  };
  if (rows.axis <= SIMD_ROW) {
    uint32_t together = std::min<uint32_t>(ROWS_PER_GROUP, max_threads / SIMD_WIDTH);
    together = std::clamp<uint32_t>(count, 1, together);
    auto groups = static_cast<uint32_t>(ceil_div(count, together));
    return launch("simd", groups, together * SIMD_WIDTH, 0);
  }
  // Metal requires that the size of threadgroup memory is a multiple of 16 bytes.
  auto scratch = [&](uint32_t threads) {
    return round_up(slots * (threads / SIMD_WIDTH) * sizeof(float), 16);
  };
  constexpr std::pair<uint32_t, std::string_view> forms[] = {{1, "row"}, {2, "row2"}, {4, "row4"}};
  for (auto [each, form] : forms) {
    auto threads = round_up(static_cast<uint32_t>(ceil_div(rows.axis, READS * each)), SIMD_WIDTH);
    if (each >= quads && threads <= max_threads) {
      // If a thread needs more than `quads` quads, use as many threads as possible. MLX's looped
      // kernels do this too, and the number of threads decides the order of addition.
      threads = each > quads ? max_threads : threads;
      return launch(form, count, threads, scratch(threads));
    }
  }
  return launch("looped", count, max_threads, scratch(max_threads));
}

} // namespace mlx_primitives
