#include "runtime/cuda_rows.h"

#include <algorithm>

namespace mlx_primitives {

namespace {

/**
 * With fewer rows than this, each row gets a large threadgroup, because otherwise some cores would
 * be idle.
 */
constexpr uint64_t FEW_ROWS = 2048;

struct Form {
  std::string_view name;
  uint32_t threads;
};

/** Chooses the kernel and the threads for rows that are too long for one SIMD group. */
Form form_of(const RowsPlan& plan, uint32_t reads, uint32_t most_threads) {
  constexpr std::pair<uint32_t, std::string_view> forms[] = {{1, "row"}, {2, "row2"}, {4, "row4"}};
  const uint32_t axis = plan.rows.axis;
  auto threads = [&](uint32_t quads) {
    return round_up(static_cast<uint32_t>(ceil_div(axis, reads * quads)), SIMD_WIDTH);
  };
  const bool few = plan.rows.count < FEW_ROWS;
  const bool narrow = reads > READS; // 16-bit elements
  const bool rms = plan.op == "rms_norm";
  const bool centered = plan.op == "layer_norm" || plan.suffix.starts_with("_layer");
  // With more quads (groups of `reads` elements) per thread, threads wait less often for each
  // other. But with too many quads, they need more registers, and a core runs fewer threadgroups at
  // a time.
  uint32_t least = plan.quads;
  uint32_t wanted = centered ? 128 : 256;
  if (few) {
    wanted = 512;
  } else if (narrow && centered && axis >= 512) {
    least = 4;
  } else if (narrow && rms && axis >= 1024) {
    least = 2;
    wanted = 320;
  }
  const bool holds_most = few || centered || !(narrow || rms);
  for (auto [quads, name] : forms) {
    bool fits = threads(quads) <= std::min(wanted, most_threads);
    if (quads >= least && quads <= (holds_most ? 4u : 2u) && fits) {
      return {name, threads(quads)};
    }
  }
  if (holds_most && threads(4) <= std::min(512u, most_threads)) {
    return {"row4", threads(4)};
  }
  const bool in_cache = !few && axis <= 1024 * reads; // at most 16 KiB per row
  return {"looped", std::min(in_cache ? 256u : 512u, most_threads)};
}

} // namespace

void plan_cuda_rows(Launch& launch, uint32_t most_threads) {
  const RowsPlan& plan = *launch.rows;
  constexpr std::string_view ops[] = {"layer_norm", "residual_norm", "rms_norm", "softmax"};
  if (std::ranges::find(ops, plan.op) == std::end(ops) || plan.rows.axis <= SIMD_ROW) {
    return;
  }
  const uint32_t axis = plan.rows.axis;
  const bool narrow = !plan.suffix.ends_with("float32");
  const uint32_t reads = narrow && axis % 8 == 0 ? 8u : unsigned{READS}; // 8 elements are 16 bytes
  auto count = grid_count(plan.op, "rows", plan.rows.count);
  auto set = [&](std::string_view form, uint32_t groups, uint32_t threads, uint32_t bytes) {
    launch.kernel = "mlxp_" + plan.op + "_" + std::string(form) + plan.suffix;
    launch.grid = {groups, 1, 1};
    launch.group = {threads, 1, 1};
    launch.threadgroup_bytes = bytes;
    launch.reads = reads;
  };
  if (axis <= SIMD_WIDTH * reads) {
    auto together = std::min<uint32_t>(ROWS_PER_GROUP, most_threads / SIMD_WIDTH);
    auto groups = static_cast<uint32_t>(ceil_div(count, together));
    return set("simd", groups, together * SIMD_WIDTH, 0);
  }
  auto [form, threads] = form_of(plan, reads, whole_simds(plan.op, most_threads));
  auto scratch = plan.slots * (threads / SIMD_WIDTH) * static_cast<uint32_t>(sizeof(float));
  set(form, count, threads, round_up(scratch, 16));
}

} // namespace mlx_primitives
