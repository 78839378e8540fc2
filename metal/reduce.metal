#include "reduce.h"
#include "rows.h"

struct SumFold {
  static METAL_FUNC float start() {
    return 0.0f;
  }
  static METAL_FUNC float step(float so_far, float x) {
    return so_far + x;
  }
  static METAL_FUNC float over_simd(float x) {
    return simd_sum(x);
  }
};

struct SquaresFold {
  static METAL_FUNC float start() {
    return 0.0f;
  }
  static METAL_FUNC float step(float so_far, float x) {
    return so_far + x * x;
  }
  static METAL_FUNC float over_simd(float x) {
    return simd_sum(x);
  }
};

/** Returns NaN if any element is NaN, as in MLX. simd_max alone would ignore a NaN. */
struct MaxFold {
  static METAL_FUNC float start() {
    return -INFINITY;
  }
  static METAL_FUNC float step(float so_far, float x) {
    return x > so_far || isnan(x) ? x : so_far;
  }
  static METAL_FUNC float over_simd(float x) {
    return simd_any(isnan(x)) ? NAN : simd_max(x);
  }
};

/** Combines quads of x that are `stride` elements apart, beginning with the quad at `at`. */
template <typename T, typename Fold>
METAL_FUNC float fold_quads(const device T* x, uint at, uint stride, uint length) {
  float value = Fold::start();
  for (; at < length; at += stride) {
    const packed4<T> quad = load4(x, at, length, T(Fold::start()));
    for (uint i = 0; i < READS; i++) {
      value = Fold::step(value, float(quad[i]));
    }
  }
  return value;
}

METAL_FUNC float finished(float value, constant ReduceParams& params) {
  value *= params.scale;
  return params.root ? precise::sqrt(value) : value;
}

/** Each SIMD group reduces a row of up to REDUCE_SIMD_ROW elements, without a barrier. */
template <typename T, typename U, typename Fold>
[[kernel]] void reduce_simd(
    const device T* x [[buffer(0)]],
    device U* out [[buffer(1)]],
    constant ReduceParams& params [[buffer(2)]],
    MLXP_SIMD_ROW) {
  const size_t row = size_t(group) * simds + simd;
  if (row >= params.rows) {
    return;
  }
  x += row * params.axis;
  float value = fold_quads<T, Fold>(x, lane * READS, SIMD_ROW, uint(params.axis));
  value = Fold::over_simd(value);
  if (lane == 0) {
    out[row] = U(finished(value, params));
  }
}

/** Each threadgroup reduces a piece of a row. */
template <typename T, typename U, typename Fold>
[[kernel]] void reduce_group(
    const device T* x [[buffer(0)]],
    device U* out [[buffer(1)]],
    constant ReduceParams& params [[buffer(2)]],
    MLXP_GROUP_ROW) {
  const Place place = {thread_index, threads, lane, simd, simds};
  const size_t row = group / params.pieces;
  const size_t start = size_t(group % params.pieces) * params.piece;
  const size_t rest = params.axis - start;
  const uint length = rest < params.piece ? uint(rest) : params.piece;
  x += row * params.axis + start;
  float value = fold_quads<T, Fold>(x, thread_index * READS, threads * READS, length);
  write_slot(Fold::over_simd(value), scratch, place);
  if (simd == 0) {
    value = Fold::over_simd(lane < simds ? scratch[lane] : Fold::start());
    if (lane == 0) {
      out[group] = U(finished(value, params));
    }
  }
}

// The names of kernels end with the types of input and output. One dispatch reduces complete rows.
// If rows are split, one dispatch reduces pieces to floats, and a second dispatch reduces the
// floats to results.
#define REDUCE_ROWS(NAME, FOLD, DTYPE, T)                                        \
  MLXP_KERNEL("mlxp_reduce_simd_" NAME DTYPE "_" DTYPE, reduce_simd<T, T, FOLD>) \
  MLXP_KERNEL("mlxp_reduce_group_" NAME DTYPE "_" DTYPE, reduce_group<T, T, FOLD>)
#define REDUCE_PIECES_OF(NAME, FOLD, DTYPE, T) \
  MLXP_KERNEL("mlxp_reduce_group_" NAME DTYPE "_float32", reduce_group<T, float, FOLD>)
#define REDUCE_RESULTS(NAME, FOLD, DTYPE, T) \
  MLXP_KERNEL("mlxp_reduce_group_" NAME "float32_" DTYPE, reduce_group<float, T, FOLD>)

#define REDUCE_KERNELS(DTYPE, T)                 \
  REDUCE_ROWS("sum_", SumFold, DTYPE, T)         \
  REDUCE_ROWS("squares_", SquaresFold, DTYPE, T) \
  REDUCE_ROWS("max_", MaxFold, DTYPE, T)

#define REDUCE_SPLIT_KERNELS(DTYPE, T)                \
  REDUCE_PIECES_OF("sum_", SumFold, DTYPE, T)         \
  REDUCE_PIECES_OF("squares_", SquaresFold, DTYPE, T) \
  REDUCE_PIECES_OF("max_", MaxFold, DTYPE, T)         \
  REDUCE_RESULTS("sum_", SumFold, DTYPE, T)           \
  REDUCE_RESULTS("max_", MaxFold, DTYPE, T)

MLXP_EACH_DTYPE(REDUCE_KERNELS)
REDUCE_SPLIT_KERNELS("float16", half)
REDUCE_SPLIT_KERNELS("bfloat16", bfloat)
