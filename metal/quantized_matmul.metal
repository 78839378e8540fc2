#include "quantized_matmul.h"

#include "quantized_matmul_stage.h"
#include "quantized_matmul_tile.h"

/** The packed weights that a lane multiplies in a step. */
template <typename T, uint BITS, uint FLOATS, uint R>
struct Weights {
  piece_t<BITS> pieces[R * Pieces<BITS>::count];
  typename Scales<T, BITS, FLOATS>::stored scales[R];
  T biases[R];
};

/** Loads the weights at `k` of R rows. The two halves of these rows begin at separate rows. */
template <typename T, uint BITS, uint FLOATS, uint R>
METAL_FUNC void load_weights(
    thread Weights<T, BITS, FLOATS, R>& weights,
    const thread Part<T>* parts,
    const thread uint* next, // 0 where a half repeats its row
    uint k,
    constant QuantizedMatmulParams& params) {
  const uint units = params.axis / QUANTIZED_VALUES;
  const uint groups = params.axis >> params.group_shift;
  for (uint r = 0; r < R; r++) {
    const Part<T> part = parts[r / (R / 2)];
    const uint row = r % (R / 2) * next[r / (R / 2)];
    const uint own = (k >> params.group_shift) + row * groups;
    load_pieces<BITS>(
        part.packed, k / QUANTIZED_VALUES + row * units, weights.pieces + r * Pieces<BITS>::count);
    weights.scales[r] = Scales<T, BITS, FLOATS>::load(part, own);
    if (FLOATS == INTEGERS) {
      weights.biases[r] = ((const device T*)part.biases)[own];
    }
  }
}

/**
 * Adds a lane's products. All weights of the lane are in one group, so the lane applies the scale
 * and the bias to the sum of the products, as in MLX.
 */
template <typename T, uint BITS, uint FLOATS, uint M, uint R>
METAL_FUNC void add_products(
    thread float* sums, // for each row of x and each row of weights
    const thread Weights<T, BITS, FLOATS, R>& loaded,
    const threadgroup T* values,
    const threadgroup float* totals) {
  typedef Format<BITS> F;
  float scale[R];
  float offset[R];
  uint words[R * F::words];
  for (uint r = 0; r < R; r++) {
    unpack<BITS>(loaded.pieces + r * Pieces<BITS>::count, words + r * F::words);
    scale[r] = Scales<T, BITS, FLOATS>::number(loaded.scales[r]);
    offset[r] = Scales<T, BITS, FLOATS>::bias(loaded.scales[r], loaded.biases[r]);
    offset[r] = fma(-added_number<T, BITS, FLOATS>(), scale[r], offset[r]);
  }
  float dots[M][R];
  for (uint m = 0; m < M; m++) {
    for (uint r = 0; r < R; r++) {
      dots[m][r] = 0.0f;
    }
  }
  for (uint w = 0; w < F::words; w++) {
    for (uint i = 0; i < F::per_half; i++) {
      float2 weights[R];
      for (uint r = 0; r < R; r++) {
        weights[r] = two_numbers<T, BITS, FLOATS>(words[r * F::words + w], i);
      }
      for (uint m = 0; m < M; m++) {
        const threadgroup T* from =
            values + m * QUANTIZED_STEP + (w * 2 * F::per_half + i) * SIMD_WIDTH;
        const float low = float(from[0]);
        const float high = float(from[F::per_half * SIMD_WIDTH]);
        for (uint r = 0; r < R; r++) {
          dots[m][r] = fma(weights[r][0], low, dots[m][r]);
          dots[m][r] = fma(weights[r][1], high, dots[m][r]);
        }
      }
    }
  }
  for (uint m = 0; m < M; m++) {
    const float total = totals[m * SIMD_WIDTH];
    for (uint r = 0; r < R; r++) {
      const float sum = sums[m * R + r];
      const float added = are_floats(FLOATS) ? sum : fma(offset[r], total, sum);
      sums[m * R + r] = fma(scale[r], dots[m][r], added);
    }
  }
}

/**
 * Multiplies up to M rows of x with packed weights. Each SIMD group reads R rows of weights once.
 * The threadgroup stages x for all of its SIMD groups.
 */
template <typename T, uint BITS, uint FLOATS, uint M, uint R>
[[kernel]] void quantized_matvec(
    const device T* x [[buffer(0)]],
    const device uchar* packed0 [[buffer(1)]],
    const device uchar* scales0 [[buffer(2)]],
    const device uchar* biases0 [[buffer(3)]],
    const device uchar* packed1 [[buffer(4)]],
    const device uchar* scales1 [[buffer(5)]],
    const device uchar* biases1 [[buffer(6)]],
    const device uchar* packed2 [[buffer(7)]],
    const device uchar* scales2 [[buffer(8)]],
    const device uchar* biases2 [[buffer(9)]],
    const device T* bias [[buffer(10)]],
    const device T* residual [[buffer(11)]],
    const device T* norm [[buffer(12)]],
    device T* out [[buffer(13)]],
    constant QuantizedMatmulParams& params [[buffer(14)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint2 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  typedef Format<BITS> F;
  const Place place = {thread_index, group_size.x, lane, simd, simds};
  const uint top = group.y * M;
  threadgroup float* inverses = scratch;
  threadgroup float* slots = scratch + QUANTIZED_BAND;
  threadgroup float* totals = slots + SIMD_WIDTH;
  const uint count =
      min(QUANTIZED_STAGED / (M * uint(sizeof(T))),
          (params.axis + QUANTIZED_STEP - 1) / QUANTIZED_STEP * QUANTIZED_STEP);
  threadgroup T* staged = (threadgroup T*)(totals + M * count / QUANTIZED_VALUES);

  const Part<T> first = {packed0, scales0, biases0};
  const Part<T> second = {packed1, scales1, biases1};
  const Part<T> third = {packed2, scales2, biases2};
  const Where where = find_part(group.x, params);
  // For swiglu, half of the rows belong to the gate, and half to the matrix that the gate
  // multiplies.
  const uint together = params.swiglu != 0 ? R / 2 : R;
  const uint column = (where.block * simds + simd) * together;
  const uint last = params.part_columns[where.part] - 1;

  // Each half begins at a separate row. The last row replaces rows past the end.
  Part<T> parts[2];
  uint next[2];
  const uint groups = params.axis >> params.group_shift;
  for (uint half_of_rows = 0; half_of_rows < 2; half_of_rows++) {
    const uint from = half_of_rows * (R / 2) % together;
    const uint row = min(column + from, last);
    next[half_of_rows] = column + from < last ? 1 : 0;
    parts[half_of_rows] =
        part_of(where.part + half_of_rows * (R / 2) / together, first, second, third);
    parts[half_of_rows].packed += size_t(row) * (params.axis / 8 * BITS);
    skip_groups<T, BITS, FLOATS>(parts[half_of_rows], size_t(row) * groups);
  }

  float sums[M * R];
  for (uint i = 0; i < M * R; i++) {
    sums[i] = 0.0f;
  }
  // For one row of x, enough registers are free to load the weights of a lane's next step early
  // and, in 16-bit types, the first values that a thread stages. These loads run while the threads
  // wait for each other.
  constexpr bool EARLY = M == 1 && BITS != 5; // the many pieces of 5 bits would cost more
  constexpr bool VALUES_EARLY = M == 1 && sizeof(T) == 2;
  constexpr uint QUADS = QUANTIZED_VALUES / READS;
  Weights<T, BITS, FLOATS, R> weights;
  uint k = lane * QUANTIZED_VALUES;
  if (EARLY) {
    const uint within = min(k, params.axis - QUANTIZED_VALUES);
    load_weights<T, BITS, FLOATS, R>(weights, parts, next, within, params);
  }
  float inverse = 0.0f;
  for (uint k0 = 0; k0 < params.axis; k0 += count) {
    Values<T> early[QUADS];
    if (VALUES_EARLY) {
      for (uint i = 0; i < QUADS; i++) {
        const uint at = k0 + thread_index * QUANTIZED_VALUES + i * READS;
        early[i] = load_values(x, norm, at, at < params.axis, params);
      }
    }
    if (M > 1) {
      if (params.normed != 0 && k0 == 0) {
        find_inverses<T, M>(x, top, inverses, slots, place, params);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    } else if (k0 > 0) { // wait until every SIMD group is done with the previous values
      threadgroup_barrier(mem_flags::mem_threadgroup);
    } else if (params.normed != 0) {
      inverse = find_inverse(x, slots, place, params);
    }
    const Stage<T> stage = {staged, totals, k0, count / QUANTIZED_VALUES};
    uint index = thread_index;
    if (VALUES_EARLY) {
      if (index < stage.lanes) {
        stage_values<T, M, true>(early, x, norm, top, stage, index, inverse, inverses, params);
      }
      index += place.threads;
    }
    for (; index < M * stage.lanes; index += place.threads) {
      stage_values<T, M, false>(early, x, norm, top, stage, index, inverse, inverses, params);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint end = min(k0 + count, params.axis);
    const threadgroup T* values = staged + lane;
    const threadgroup float* line = totals + lane;
    if (M > 1) {
      k = k0 + lane * QUANTIZED_VALUES;
    }
    while (k < end) {
      if (!EARLY) {
        load_weights<T, BITS, FLOATS, R>(weights, parts, next, k, params);
      }
      add_products<T, BITS, FLOATS, M, R>(sums, weights, values, line);
      values += M * QUANTIZED_STEP;
      line += M * SIMD_WIDTH;
      k += QUANTIZED_STEP;
      if (EARLY && k < params.axis) {
        load_weights<T, BITS, FLOATS, R>(weights, parts, next, k, params);
      }
    }
  }

  // Lane m * R + r finishes the product of row m of x with row r of the weights.
  float mine = 0.0f;
  for (uint i = 0; i < M * R; i++) {
    const float sum = simd_sum(sums[i]);
    mine = lane == i ? sum : mine;
  }
  const uint row = top + lane / R;
  const uint r = lane % R;
  float y = float(T(mine));
  if (params.swiglu != 0) {
    y = swiglu<T>(y, simd_shuffle_down(y, ushort(R / 2)));
  }
  const bool writes = lane < M * R && r < together && row < params.rows;
  if (writes && column + r <= last) {
    write_result(y, row, where.columns_before + column + r, bias, residual, out, params);
  }
}

#define QUANTIZED_MATVEC(NAME, FORMAT, DTYPE, ROWS, ...)  \
  MLXP_KERNEL(                                            \
      "mlxp_quantized_matmul_" NAME "_" FORMAT "_" DTYPE, \
      quantized_matvec<__VA_ARGS__, ROWS, quantized_rows(ROWS)>)
#define QUANTIZED_TILES(NAME, FORMAT, DTYPE, ROWS, ...) \
  MLXP_KERNEL("mlxp_quantized_matmul_" NAME "_" FORMAT "_" DTYPE, quantized_tile<__VA_ARGS__, ROWS>)
#define QUANTIZED_KERNELS(FORMAT, DTYPE, ...)              \
  QUANTIZED_MATVEC("row", FORMAT, DTYPE, 1, __VA_ARGS__)   \
  QUANTIZED_MATVEC("band2", FORMAT, DTYPE, 2, __VA_ARGS__) \
  QUANTIZED_MATVEC("band4", FORMAT, DTYPE, 4, __VA_ARGS__) \
  QUANTIZED_MATVEC("band8", FORMAT, DTYPE, 8, __VA_ARGS__) \
  QUANTIZED_TILES("tile", FORMAT, DTYPE, 32, __VA_ARGS__)  \
  QUANTIZED_TILES("tall", FORMAT, DTYPE, 64, __VA_ARGS__)

#define QUANTIZED_FORMATS(DTYPE, T)                  \
  QUANTIZED_KERNELS("b2", DTYPE, T, 2, INTEGERS)     \
  QUANTIZED_KERNELS("b3", DTYPE, T, 3, INTEGERS)     \
  QUANTIZED_KERNELS("b4", DTYPE, T, 4, INTEGERS)     \
  QUANTIZED_KERNELS("b5", DTYPE, T, 5, INTEGERS)     \
  QUANTIZED_KERNELS("b6", DTYPE, T, 6, INTEGERS)     \
  QUANTIZED_KERNELS("b8", DTYPE, T, 8, INTEGERS)     \
  QUANTIZED_KERNELS("mxfp4", DTYPE, T, 4, MX_FLOATS) \
  QUANTIZED_KERNELS("mxfp8", DTYPE, T, 8, MX_FLOATS) \
  QUANTIZED_KERNELS("nvfp4", DTYPE, T, 4, NV_FLOATS)

// Files with K-quants (GGUF's formats with scales in blocks of 256) have float32 norms, so the
// products are float32 too.
QUANTIZED_KERNELS("k4", "float32", float, 4, K_QUANTS)
QUANTIZED_KERNELS("k5", "float32", float, 5, K_QUANTS)
QUANTIZED_KERNELS("k6", "float32", float, 6, K_QUANTS)

MLXP_EACH_DTYPE(QUANTIZED_FORMATS)
