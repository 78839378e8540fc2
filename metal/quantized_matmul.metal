#include "quantized_matmul.h"

#include "quantized_matmul_format.h"
#include "quantized_matmul_tile.h"

/** Reciprocal root mean squares of the band's rows, in threadgroup memory. */
template <typename T, uint M>
METAL_FUNC void find_inverses(
    const device T* x,
    uint top,
    threadgroup float* inverses,
    threadgroup float* slots,
    Place place,
    constant QuantizedMatmulParams& params) {
  if (M == 1) {
    float sum = 0.0f;
    for (uint at = place.index * READS; at < params.axis; at += place.threads * READS) {
      packed4<T> quad = *(const device packed4<T>*)(x + size_t(top) * params.axis + at);
      for (uint i = 0; i < READS; i++) {
        sum += float(quad[i]) * float(quad[i]);
      }
    }
    sum = group_sum(sum, slots, place);
    if (place.index == 0) {
      inverses[0] = precise::rsqrt(sum / float(params.axis) + params.eps);
    }
    return;
  }
  for (uint m = place.simd; m < M && top + m < params.rows; m += place.simds) {
    float sum = 0.0f;
    for (uint at = place.lane * READS; at < params.axis; at += SIMD_WIDTH * READS) {
      packed4<T> quad = *(const device packed4<T>*)(x + size_t(top + m) * params.axis + at);
      for (uint i = 0; i < READS; i++) {
        sum += float(quad[i]) * float(quad[i]);
      }
    }
    sum = simd_sum(sum);
    if (place.lane == 0) {
      inverses[m] = precise::rsqrt(sum / float(params.axis) + params.eps);
    }
  }
}

/**
 * Stages columns k0.. of the band's rows, `count` of each with zeros beyond the end, in the order
 * in which a SIMD group reads them: by step, then row, then position, for all lanes. The sum of the
 * elements that a lane multiplies in a step goes to `totals`.
 */
template <typename T, uint M>
METAL_FUNC void stage(
    const device T* x,
    const device T* norm,
    uint top,
    uint k0,
    uint count,
    threadgroup T* staged,
    threadgroup float* totals,
    const threadgroup float* inverses,
    Place place,
    constant QuantizedMatmulParams& params) {
  const uint lanes = count / QUANTIZED_VALUES;
  for (uint i = place.index; i < M * lanes; i += place.threads) {
    const uint m = i / lanes;
    const uint at = i % lanes;
    const uint k = k0 + at * QUANTIZED_VALUES;
    const bool live = top + m < params.rows && k < params.axis;
    const uint of_lanes = (at / SIMD_WIDTH * M + m) * SIMD_WIDTH;
    threadgroup T* to = staged + of_lanes * QUANTIZED_VALUES + at % SIMD_WIDTH;
    float total = 0.0f;
    for (uint from = 0; from < QUANTIZED_VALUES; from += READS) {
      packed4<T> quad;
      for (uint j = 0; j < READS; j++) {
        quad[j] = T(0.0f);
      }
      if (live) {
        quad = *(const device packed4<T>*)(x + size_t(top + m) * params.axis + k + from);
        if (params.normed != 0) {
          packed4<T> weight = *(const device packed4<T>*)(norm + k + from);
          for (uint j = 0; j < READS; j++) {
            quad[j] = T(float(T(float(quad[j]) * inverses[m])) * float(weight[j]));
          }
        }
      }
      for (uint j = 0; j < READS; j++) {
        to[(from + j) * SIMD_WIDTH] = quad[j];
        total += float(quad[j]);
      }
    }
    totals[of_lanes + at % SIMD_WIDTH] = total;
  }
}

/** A lane's products: a group's scale and bias apply to the sums of them, as in MLX. */
template <typename T, uint BITS, uint FLOATS, uint M, uint R>
METAL_FUNC void add_products(
    thread float* sums,       // for each row of x and each row of weights
    const thread uint* words, // for each row of weights
    const thread float* scale,
    const thread float* offset,
    const threadgroup T* values,
    const threadgroup float* totals) {
  typedef Format<BITS> F;
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
      sums[m * R + r] = fma(scale[r], dots[m][r], FLOATS ? sum : fma(offset[r], total, sum));
    }
  }
}

/**
 * Up to M rows of x with R rows of weights for each SIMD group, which reads them once; x is staged
 * for the whole threadgroup.
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
  if (params.normed != 0) {
    find_inverses<T, M>(x, top, inverses, slots, place, params);
  }

  const Part<T> first = {packed0, scales0, biases0};
  const Part<T> second = {packed1, scales1, biases1};
  const Part<T> third = {packed2, scales2, biases2};
  const Where where = find_part(group.x, params);
  // Half of the rows are the gate's, and half are those that it multiplies.
  const uint together = params.swiglu != 0 ? R / 2 : R;
  const uint column = (where.block * simds + simd) * together;
  const uint last = params.part_columns[where.part] - 1;

  // Each half begins at its own row; the last row replaces rows past the end.
  Part<T> parts[2];
  uint next[2];
  const uint groups = params.axis >> params.group_shift;
  const uint units = params.axis / QUANTIZED_VALUES;
  for (uint half_of_rows = 0; half_of_rows < 2; half_of_rows++) {
    const uint from = half_of_rows * (R / 2) % together;
    const uint row = min(column + from, last);
    next[half_of_rows] = column + from < last ? 1 : 0;
    parts[half_of_rows] =
        part_of(where.part + half_of_rows * (R / 2) / together, first, second, third);
    parts[half_of_rows].packed += size_t(row) * (params.axis / 8 * BITS);
    parts[half_of_rows].scales += size_t(row) * groups * (FLOATS ? 1 : sizeof(T));
    parts[half_of_rows].biases += FLOATS ? 0 : size_t(row) * groups * sizeof(T);
  }

  float sums[M * R];
  for (uint i = 0; i < M * R; i++) {
    sums[i] = 0.0f;
  }
  for (uint k0 = 0; k0 < params.axis; k0 += count) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage<T, M>(x, norm, top, k0, count, staged, totals, inverses, place, params);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // The weights of a lane are in one group, whose scale and bias apply to the sums of products.
    const uint end = min(k0 + count, params.axis);
    const threadgroup T* values = staged + lane;
    const threadgroup float* line = totals + lane;
    for (uint k = k0 + lane * QUANTIZED_VALUES; k < end; k += QUANTIZED_STEP) {
      const uint unit = k / QUANTIZED_VALUES;
      const uint own = k >> params.group_shift;
      float scale[R];
      float offset[R];
      uint words[R * F::words];
      for (uint r = 0; r < R; r++) {
        const uint row = r % (R / 2) * next[r / (R / 2)];
        load_words<BITS>(parts[r / (R / 2)].packed, unit + row * units, words + r * F::words);
        scale[r] = scale_at<T, FLOATS>(parts[r / (R / 2)], own + row * groups);
        offset[r] = bias_at<T, FLOATS>(parts[r / (R / 2)], own + row * groups);
        offset[r] = fma(-added_number<T, BITS, FLOATS>(), scale[r], offset[r]);
      }
      add_products<T, BITS, FLOATS, M, R>(sums, words, scale, offset, values, line);
      values += M * QUANTIZED_STEP;
      line += M * SIMD_WIDTH;
    }
  }

  // Lane m * R + r finishes the product of row m with row r.
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

MLXP_EACH_DTYPE(QUANTIZED_FORMATS)
