#include "cross_entropy.h"
#include "softmax_rows.h"

// If a target is neither ignored nor a class, the loss of its row is NaN, and the kernel does not
// read row[target], which may lie outside of the array.

METAL_FUNC bool is_ignored(constant CrossEntropyParams& params, int target) {
  return params.ignores != 0 && target == params.ignored;
}

METAL_FUNC bool has_class(constant CrossEntropyParams& params, int target) {
  return target >= 0 && uint(target) < params.classes;
}

METAL_FUNC float total4(float total, const thread float* values, uint at, uint axis) {
  for (uint i = 0; i < READS; i++) {
    total += at + i < axis ? values[i] : 0.0f;
  }
  return total;
}

/** Writes the loss of a row and the statistics for its gradient. One thread calls it per row. */
template <typename T>
METAL_FUNC void store_loss(
    const device T* row,
    int target,
    device T* loss,
    device float* kept,
    constant CrossEntropyParams& params,
    RowStats stats,
    float total) {
  kept[0] = stats.maximum;
  kept[1] = stats.sum;
  float result = is_ignored(params, target) ? 0.0f : NAN;
  if (!is_ignored(params, target) && has_class(params, target)) {
    const float score = float(row[target]) - stats.maximum;
    result = precise::log(stats.sum) - score;
    if (params.smoothing > 0.0f) {
      const float mean = total / float(params.classes) - stats.maximum;
      result =
          precise::log(stats.sum) - (1.0f - params.smoothing) * score - params.smoothing * mean;
    }
  }
  *loss = T(result);
}

/** Each SIMD group computes a row of up to SIMD_ROW classes, without a barrier. */
template <typename T>
[[kernel]] void cross_entropy_simd(
    const device T* x [[buffer(0)]],
    const device int* targets [[buffer(1)]],
    device T* loss [[buffer(2)]],
    device float* kept [[buffer(3)]],
    constant CrossEntropyParams& params [[buffer(4)]],
    MLXP_SIMD_ROW) {
  const size_t row = size_t(group) * simds + simd;
  if (row >= params.rows) {
    return;
  }
  x += row * params.classes;
  const uint at = lane * READS;

  float values[READS];
  load_row4(values, x, at, params.classes);
  const float total = simd_sum(total4(0.0f, values, at, params.classes));
  RowStats stats = no_stats();
  stats.maximum = simd_max(max4(stats.maximum, values));
  stats.sum = simd_sum(exp4(0.0f, values, stats.maximum));
  if (lane == 0) {
    store_loss(x, targets[row], loss + row, kept + 2 * row, params, stats, total);
  }
}

/** Each threadgroup computes a row of any length, and reads it once. */
template <typename T>
[[kernel]] void cross_entropy_looped(
    const device T* x [[buffer(0)]],
    const device int* targets [[buffer(1)]],
    device T* loss [[buffer(2)]],
    device float* kept [[buffer(3)]],
    constant CrossEntropyParams& params [[buffer(4)]],
    MLXP_GROUP_ROW) {
  const Place place = {thread_index, threads, lane, simd, simds};
  const size_t row = group;
  x += row * params.classes;

  float values[READS];
  float total = 0.0f;
  RowStats stats = no_stats();
  for (uint at = thread_index * READS; at < params.classes; at += threads * READS) {
    load_row4(values, x, at, params.classes);
    total = total4(total, values, at, params.classes);
    stats = with4(stats, values);
  }
  // Threads write these totals before the barrier of `group_stats`, and read them after it.
  total = simd_sum(total);
  if (lane == 0) {
    scratch[2 * simds + simd] = total;
  }
  stats = group_stats(stats, scratch, place);
  total = combined_sum(scratch + 2 * simds, place);
  if (thread_index == 0) {
    store_loss(x, targets[row], loss + row, kept + 2 * row, params, stats, total);
  }
}

/** The values that all elements of a row's gradient share. */
struct Shares {
  float maximum;
  float factor; // of exp(x - maximum)
  float spread; // subtracted from every class
  float hit;    // also subtracted from the target
  int target;   // -1 if the row does not count
};

/** Computes the shared values. The first lane reads memory for all lanes. */
template <typename T>
METAL_FUNC Shares load_shares(
    const device int* targets,
    const device float* kept,
    const device T* g,
    size_t row,
    constant CrossEntropyParams& params,
    uint lane) {
  Shares shares = {0.0f, 0.0f, 0.0f, 0.0f, 0};
  if (lane == 0) {
    shares.target = targets[row];
    const float weight = float(g[row]);
    if (is_ignored(params, shares.target)) {
      shares.target = -1;
    } else if (!has_class(params, shares.target)) {
      shares.target = -1;
      shares.spread = NAN;
    } else {
      shares.maximum = kept[2 * row];
      shares.factor = weight / kept[2 * row + 1];
      shares.spread = weight * params.smoothing / float(params.classes);
      shares.hit = weight * (1.0f - params.smoothing);
    }
  }
  shares.maximum = simd_broadcast_first(shares.maximum);
  shares.factor = simd_broadcast_first(shares.factor);
  shares.spread = simd_broadcast_first(shares.spread);
  shares.hit = simd_broadcast_first(shares.hit);
  shares.target = simd_broadcast_first(shares.target);
  return shares;
}

/** Gradients from `at` on: weight * (softmax - (1 - smoothing) * onehot - smoothing / classes). */
template <typename T>
METAL_FUNC void store_gradients4(
    const device T* x, device T* out, uint at, uint axis, Shares shares, bool counts) {
  float values[READS] = {0.0f, 0.0f, 0.0f, 0.0f};
  if (counts) {
    load_row4(values, x, at, axis);
    exp4(0.0f, values, shares.maximum);
  }
  packed4<T> quad;
  for (uint i = 0; i < READS; i++) {
    const float less = int(at + i) == shares.target ? shares.spread + shares.hit : shares.spread;
    quad[i] = T(values[i] * shares.factor - less);
  }
  store4(out, at, axis, quad);
}

/** With QUADS = 1, each SIMD group computes a complete row. Otherwise each threadgroup computes a
 * part of a row. */
template <typename T, uint QUADS>
[[kernel]] void cross_entropy_grad(
    const device T* x [[buffer(0)]],
    const device int* targets [[buffer(1)]],
    const device float* kept [[buffer(2)]],
    const device T* g [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant CrossEntropyParams& params [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  const uint threads = group_size.x;
  const bool short_row = QUADS == 1;
  const size_t row = short_row ? size_t(group.x) * simds + simd : size_t(group.x);
  if (row >= params.rows) {
    return;
  }
  const Shares shares = load_shares(targets, kept, g, row, params, lane);
  x += row * params.classes;
  out += row * params.classes;
  const bool counts = shares.target >= 0;
  const uint first = short_row ? lane : group.y * QUADS * threads + thread_index;
  for (uint q = 0; q < QUADS; q++) {
    const uint at = (first + q * threads) * READS;
    if (at < params.classes) {
      store_gradients4(x, out, at, params.classes, shares, counts);
    }
  }
}

#define CROSS_ENTROPY_KERNELS(DTYPE, T)                                        \
  MLXP_KERNEL("mlxp_cross_entropy_simd_" DTYPE, cross_entropy_simd<T>)         \
  MLXP_KERNEL("mlxp_cross_entropy_looped_" DTYPE, cross_entropy_looped<T>)     \
  MLXP_KERNEL("mlxp_cross_entropy_grad_simd_" DTYPE, cross_entropy_grad<T, 1>) \
  MLXP_KERNEL("mlxp_cross_entropy_grad_row_" DTYPE, cross_entropy_grad<T, CROSS_ENTROPY_QUADS>)

MLXP_EACH_DTYPE(CROSS_ENTROPY_KERNELS)
