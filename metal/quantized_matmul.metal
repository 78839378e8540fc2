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
 * Columns k0.. of the band's rows, zeros beyond their ends, in the order in which the lanes of a
 * SIMD group want them: position after position of all lanes.
 */
template <typename T, uint M, uint VALUES>
METAL_FUNC void stage(
    const device T* x,
    const device T* norm,
    uint top,
    uint k0,
    threadgroup T* staged,
    const threadgroup float* inverses,
    Place place,
    constant QuantizedMatmulParams& params) {
  const uint depth = QUANTIZED_STAGED / (M * uint(sizeof(T)));
  const uint step = SIMD_WIDTH * VALUES;
  const uint wanted = min(depth, (params.axis - k0 + step - 1) / step * step);
  for (uint i = place.index * READS; i < M * wanted; i += place.threads * READS) {
    const uint m = i / wanted;
    const uint at = i % wanted;
    const uint k = k0 + at;
    packed4<T> quad;
    for (uint j = 0; j < READS; j++) {
      quad[j] = T(0.0f);
    }
    if (top + m < params.rows && k < params.axis) {
      quad = *(const device packed4<T>*)(x + size_t(top + m) * params.axis + k);
      if (params.normed != 0) {
        packed4<T> weight = *(const device packed4<T>*)(norm + k);
        for (uint j = 0; j < READS; j++) {
          quad[j] = T(float(T(float(quad[j]) * inverses[m])) * float(weight[j]));
        }
      }
    }
    threadgroup T* to = staged + m * depth + at / step * step + at % step / VALUES;
    for (uint j = 0; j < READS; j++) {
      to[(at % VALUES + j) * SIMD_WIDTH] = quad[j];
    }
  }
}

/** A lane's products: a group's scale and bias apply to the sums of them, as in MLX. */
template <typename T, uint BITS, bool FP4, uint M>
METAL_FUNC void add_products(
    thread float (&sums)[M][QUANTIZED_ROWS],
    thread uint (&fields)[QUANTIZED_ROWS][Format<BITS>::fields],
    thread float (&scale)[QUANTIZED_ROWS],
    thread float (&offset)[QUANTIZED_ROWS],
    const threadgroup T* values,
    uint depth) {
  typedef Format<BITS> F;
  float dots[M][QUANTIZED_ROWS];
  float totals[M];
  for (uint m = 0; m < M; m++) {
    totals[m] = 0.0f;
    for (uint r = 0; r < QUANTIZED_ROWS; r++) {
      dots[m][r] = 0.0f;
    }
  }
  for (uint f = 0; f < F::fields; f++) {
    for (uint i = 0; i < F::per_field; i++) {
      float weights[QUANTIZED_ROWS];
      for (uint r = 0; r < QUANTIZED_ROWS; r++) {
        weights[r] = number_in_place<BITS, FP4>(fields[r][f], i);
      }
      for (uint m = 0; m < M; m++) {
        const float value = float(values[m * depth + (f * F::per_field + i) * SIMD_WIDTH]);
        totals[m] += value;
        const float scaled = value * unit_in_place<BITS, FP4>(i);
        for (uint r = 0; r < QUANTIZED_ROWS; r++) {
          dots[m][r] = fma(weights[r], scaled, dots[m][r]);
        }
      }
    }
  }
  for (uint m = 0; m < M; m++) {
    for (uint r = 0; r < QUANTIZED_ROWS; r++) {
      sums[m][r] = fma(scale[r], dots[m][r], fma(offset[r], totals[m], sums[m][r]));
    }
  }
}

/** The same with every weight scaled before it is multiplied: fewer sums, where M rows share it. */
template <typename T, uint BITS, bool FP4, uint M>
METAL_FUNC void add_scaled_products(
    thread float (&sums)[M][QUANTIZED_ROWS],
    thread uint (&fields)[QUANTIZED_ROWS][Format<BITS>::fields],
    thread float (&scale)[QUANTIZED_ROWS],
    thread float (&offset)[QUANTIZED_ROWS],
    const threadgroup T* values,
    uint depth) {
  typedef Format<BITS> F;
  for (uint f = 0; f < F::fields; f++) {
    for (uint i = 0; i < F::per_field; i++) {
      float weights[QUANTIZED_ROWS];
      for (uint r = 0; r < QUANTIZED_ROWS; r++) {
        weights[r] = fma(scale[r], number<BITS, FP4>(fields[r][f], i), offset[r]);
      }
      for (uint m = 0; m < M; m++) {
        const float value = float(values[m * depth + (f * F::per_field + i) * SIMD_WIDTH]);
        for (uint r = 0; r < QUANTIZED_ROWS; r++) {
          sums[m][r] = fma(weights[r], value, sums[m][r]);
        }
      }
    }
  }
}

/**
 * Up to M rows of x with QUANTIZED_ROWS rows of weights for each SIMD group, which reads them
 * once; x is staged for the whole threadgroup.
 */
template <typename T, uint BITS, bool FP4, uint M>
[[kernel]] void quantized_matvec(
    const device T* x [[buffer(0)]],
    const device uchar* packed0 [[buffer(1)]],
    const device uchar* scales0 [[buffer(2)]],
    const device T* biases0 [[buffer(3)]],
    const device uchar* packed1 [[buffer(4)]],
    const device uchar* scales1 [[buffer(5)]],
    const device T* biases1 [[buffer(6)]],
    const device uchar* packed2 [[buffer(7)]],
    const device uchar* scales2 [[buffer(8)]],
    const device T* biases2 [[buffer(9)]],
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
  threadgroup T* staged = (threadgroup T*)(slots + SIMD_WIDTH);
  if (params.normed != 0) {
    find_inverses<T, M>(x, top, inverses, slots, place, params);
  }

  const Part<T> first = {packed0, scales0, biases0};
  const Part<T> second = {packed1, scales1, biases1};
  const Part<T> third = {packed2, scales2, biases2};
  const Where where = find_part(group.x, params);
  // Half of the rows are the gate's and half those of what it multiplies.
  const uint together = params.swiglu != 0 ? QUANTIZED_ROWS / 2 : QUANTIZED_ROWS;
  const uint column = (where.block * simds + simd) * together;
  const uint last = params.part_columns[where.part] - 1;

  Part<T> parts[QUANTIZED_ROWS];
  const uint groups = params.axis >> params.group_shift;
  for (uint r = 0; r < QUANTIZED_ROWS; r++) {
    parts[r] = part_of(where.part + r / together, first, second, third);
    const size_t row = min(column + r % together, last);
    parts[r].packed += row * (params.axis / 8 * BITS);
    parts[r].scales += row * groups * (FP4 ? 1 : sizeof(T));
    parts[r].biases += FP4 ? 0 : row * groups;
  }

  const uint depth = QUANTIZED_STAGED / (M * uint(sizeof(T)));
  float sums[M][QUANTIZED_ROWS];
  for (uint m = 0; m < M; m++) {
    for (uint r = 0; r < QUANTIZED_ROWS; r++) {
      sums[m][r] = 0.0f;
    }
  }
  for (uint k0 = 0; k0 < params.axis; k0 += depth) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage<T, M, F::values>(x, norm, top, k0, staged, inverses, place, params);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint at = 0; at < depth && k0 + at < params.axis; at += F::step) {
      // A lane's weights are of one group: its scale and bias apply to the sums of its products.
      // Lanes beyond the end multiply zeros with weights of the last lane before it.
      const uint k = k0 + at + lane * F::values;
      const bool live = k < params.axis;
      const uint read = live ? k : params.axis - F::values;
      const uint own = read >> params.group_shift;
      float scale[QUANTIZED_ROWS];
      float offset[QUANTIZED_ROWS];
      uint fields[QUANTIZED_ROWS][F::fields];
      for (uint r = 0; r < QUANTIZED_ROWS; r++) {
        load_fields<BITS>(parts[r].packed, read / F::values, fields[r]);
        scale[r] = live ? scale_at<T, FP4>(parts[r], own) : 0.0f;
        offset[r] = live ? bias_at<T, FP4>(parts[r], own) : 0.0f;
      }
      const threadgroup T* values = staged + at + lane;
      if (M < QUANTIZED_BAND) {
        add_products<T, BITS, FP4, M>(sums, fields, scale, offset, values, depth);
      } else {
        add_scaled_products<T, BITS, FP4, M>(sums, fields, scale, offset, values, depth);
      }
    }
  }

  // Lane m * QUANTIZED_ROWS + r finishes the product of row m with row r.
  float mine = 0.0f;
  for (uint m = 0; m < M; m++) {
    for (uint r = 0; r < QUANTIZED_ROWS; r++) {
      const float sum = simd_sum(sums[m][r]);
      mine = lane == m * QUANTIZED_ROWS + r ? sum : mine;
    }
  }
  const uint row = top + lane / QUANTIZED_ROWS;
  const uint r = lane % QUANTIZED_ROWS;
  float y = float(T(mine));
  if (params.swiglu != 0) {
    y = swiglu<T>(y, simd_shuffle_down(y, ushort(QUANTIZED_ROWS / 2)));
  }
  const bool writes = lane < M * QUANTIZED_ROWS && r < together && row < params.rows;
  if (writes && column + r <= last) {
    write_result(y, row, where.columns_before + column + r, bias, residual, out, params);
  }
}

#define QUANTIZED_KERNELS(FORMAT, DTYPE, T, ...)                                                  \
  MLXP_KERNEL("mlxp_quantized_matmul_row_" FORMAT "_" DTYPE, quantized_matvec<T, __VA_ARGS__, 1>) \
  MLXP_KERNEL(                                                                                    \
      "mlxp_quantized_matmul_band2_" FORMAT "_" DTYPE, quantized_matvec<T, __VA_ARGS__, 2>)       \
  MLXP_KERNEL(                                                                                    \
      "mlxp_quantized_matmul_band4_" FORMAT "_" DTYPE, quantized_matvec<T, __VA_ARGS__, 4>)       \
  MLXP_KERNEL(                                                                                    \
      "mlxp_quantized_matmul_band8_" FORMAT "_" DTYPE, quantized_matvec<T, __VA_ARGS__, 8>)       \
  MLXP_KERNEL("mlxp_quantized_matmul_tile_" FORMAT "_" DTYPE, quantized_tile<T, __VA_ARGS__>)

#define QUANTIZED_FORMATS(DTYPE, T)           \
  QUANTIZED_KERNELS("b2", DTYPE, T, 2, false) \
  QUANTIZED_KERNELS("b3", DTYPE, T, 3, false) \
  QUANTIZED_KERNELS("b4", DTYPE, T, 4, false) \
  QUANTIZED_KERNELS("b6", DTYPE, T, 6, false) \
  QUANTIZED_KERNELS("b8", DTYPE, T, 8, false) \
  QUANTIZED_KERNELS("mxfp4", DTYPE, T, 4, true)

MLXP_EACH_DTYPE(QUANTIZED_FORMATS)
