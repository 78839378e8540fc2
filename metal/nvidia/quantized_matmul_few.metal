#include "nvidia/quantized_matmul_few.h"

/**
 * Up to BAND rows of x with packed weights. Each SIMD group multiplies FEW_ROWS rows of weights, as
 * small matrices, with a part of the columns; `splits` of them share these rows. A column of the
 * right matrix is a row of x at the columns of one group of weights, or of one lane if groups are
 * shorter, and zero elsewhere, so that the result has a sum for each. Every sum has the same
 * products in the same order in every band.
 */
template <typename T, uint BITS, uint FLOATS, uint SPAN, uint BAND>
[[kernel]] void quantized_few(
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
  constexpr uint PASSES = BAND == 2 ? 1 : 4 / SPAN;
  const Place place = {thread_index, group_size.x, lane, simd, simds};
  const uint splits = params.splits;
  const uint top = group.y * BAND;
  const uint g = lane / 4;
  const uint t = lane % 4;

  threadgroup float* zeros = scratch;
  threadgroup float* inverses = zeros + QUANTIZED_FEW_ZEROS;
  threadgroup float* slots = inverses + QUANTIZED_BAND;
  threadgroup float* partial = slots + SIMD_WIDTH;
  const uint texts = min(params.rows, BAND);
  const uint count = quantized_few_staged(params.rows, BAND, params.axis, splits);
  threadgroup float* totals = partial + simds * FEW_ROWS * BAND;
  threadgroup T* values = (threadgroup T*)(totals + BAND * count / QUANTIZED_VALUES);

  const Part<T> first = {packed0, scales0, biases0};
  const Part<T> second = {packed1, scales1, biases1};
  const Part<T> third = {packed2, scales2, biases2};
  const Where where = find_part(group.x, params);
  // Half of the rows are the gate's, and half are those that it multiplies.
  const uint together = params.swiglu != 0 ? FEW_ROWS / 2 : FEW_ROWS;
  const uint block_column = where.block * (simds / splits) * together;
  const uint column = block_column + simd / splits * together;
  const uint last = params.part_columns[where.part] - 1;
  Part<T> parts[2];
  const uint groups = params.axis >> params.group_shift;
  for (uint r = 0; r < 2; r++) {
    const uint row = min(column + g + (params.swiglu != 0 ? 0 : r * 8), last);
    parts[r] = part_of(where.part + (params.swiglu != 0 ? r : 0), first, second, third);
    parts[r].packed += size_t(row) * (params.axis / 8 * BITS);
    parts[r].scales += size_t(row) * groups * (FLOATS ? 1 : sizeof(T));
    parts[r].biases += FLOATS ? 0 : size_t(row) * groups * sizeof(T);
  }

  // The first weights are on their way while x is staged.
  FewWeights<T, BITS, FLOATS> weights;
  const uint step = splits * FEW_BLOCK;
  uint k = simd % splits * FEW_BLOCK;
  load_few<T, BITS, FLOATS, SPAN>(weights, parts, k, t, params);
  const uint exponents = in_register(few_exponents<T, BITS>());

  for (uint i = thread_index; i < QUANTIZED_FEW_ZEROS; i += place.threads) {
    zeros[i] = 0.0f;
  }
  if (params.normed != 0) {
    find_inverses<T, BAND>(x, top, inverses, slots, place, params);
  }

  float sums[PASSES * 4];
  for (uint i = 0; i < PASSES * 4; i++) {
    sums[i] = 0.0f;
  }
  for (uint k0 = 0; k0 < params.axis; k0 += count) {
    if (k0 > 0) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const FewStage<T> stage = {values, totals, k0, count, texts};
    for (uint i = thread_index; i < texts * (count / QUANTIZED_VALUES); i += place.threads) {
      stage_few<T, BITS, BAND>(x, norm, top, stage, i, inverses, params);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint end = min(k0 + count, params.axis);
    // A column of the right matrix is a row of x at the columns of one group, and else zero.
    FewPlaces<PASSES> places;
    const uint text = BAND == 2 ? g % 2 : g;
    for (uint p = 0; p < PASSES; p++) {
      const bool active = (BAND == 2 ? g / 2 : p) == t / SPAN && text < texts;
      const threadgroup T* from = values + text * stage.pitch() + (k - k0);
      places.x[p] = (const threadgroup uint4*)(active ? from : (const threadgroup T*)zeros) + t;
      places.steps[p] = active ? FEW_BLOCK / 8 : 0;
    }
    const uint of_lane = BAND == 2 ? t % (4 / SPAN) * SPAN * FEW_UNITS * BAND : t * 2;
    places.totals = totals + (k - k0) / QUANTIZED_VALUES * BAND + of_lane;
    for (; k < end; k += step) {
      const bool live = k + t * FEW_CHUNK < params.axis;
      add_few<T, BITS, FLOATS, BAND, SPAN>(sums, weights, places, live, exponents, lane);
      if (k + step < params.axis) {
        load_few<T, BITS, FLOATS, SPAN>(weights, parts, k + step, t, params);
      }
      for (uint p = 0; p < PASSES; p++) {
        places.x[p] += splits * places.steps[p];
      }
      places.totals += splits * (FEW_BLOCK / QUANTIZED_VALUES * BAND);
    }
  }

  // The sums of the groups, in the same order in every band.
  threadgroup float* own = partial + simd * FEW_ROWS * BAND;
  for (uint i = 0; i < 4; i++) {
    float sum = sums[i];
    if (BAND == 2) {
      for (uint p = 1; p < 4 / SPAN; p *= 2) {
        sum += simd_shuffle_xor(sum, ushort(p));
      }
    } else {
      for (uint p = 1; p < PASSES; p *= 2) { // as the lanes do
        for (uint q = 0; q + p < PASSES; q += 2 * p) {
          sums[q * 4 + i] += sums[(q + p) * 4 + i];
        }
      }
      sum = sums[i];
    }
    if (BAND != 2 || t == 0) {
      own[(g + i / 2 * 8) * BAND + (BAND == 2 ? i % 2 : t * 2 + i % 2)] = sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint results = simds / splits * together * texts;
  for (uint i = thread_index; i < results; i += place.threads) {
    const uint text = i % texts;
    const uint r = i / texts % together;
    const uint tile = i / texts / together;
    float y[2] = {0.0f, 0.0f};
    for (uint part = 0; part < splits; part++) {
      const threadgroup float* from = partial + (tile * splits + part) * FEW_ROWS * BAND + text;
      y[0] += from[r * BAND];
      y[1] += from[(r + 8) % FEW_ROWS * BAND];
    }
    float value = float(T(y[0]));
    if (params.swiglu != 0) {
      value = swiglu<T>(value, float(T(y[1])));
    }
    const uint at = block_column + tile * together + r;
    if (at <= last && top + text < params.rows) {
      write_result(value, top + text, where.columns_before + at, bias, residual, out, params);
    }
  }
}

#define QUANTIZED_FEW(NAME, FORMAT, DTYPE, ...) \
  MLXP_KERNEL("mlxp_quantized_few_" NAME "_" FORMAT "_" DTYPE, quantized_few<__VA_ARGS__>)
#define QUANTIZED_BANDS(FORMAT, DTYPE, ...)             \
  QUANTIZED_FEW("band2", FORMAT, DTYPE, __VA_ARGS__, 2) \
  QUANTIZED_FEW("band8", FORMAT, DTYPE, __VA_ARGS__, 8)
#define QUANTIZED_GROUPS(FORMAT, DTYPE, ...)            \
  QUANTIZED_BANDS(FORMAT "_g32", DTYPE, __VA_ARGS__, 1) \
  QUANTIZED_BANDS(FORMAT "_g64", DTYPE, __VA_ARGS__, 2) \
  QUANTIZED_BANDS(FORMAT "_g128", DTYPE, __VA_ARGS__, 4)
#define QUANTIZED_FEW_FORMATS(DTYPE, T)               \
  QUANTIZED_GROUPS("b2", DTYPE, T, 2, INTEGERS)       \
  QUANTIZED_GROUPS("b3", DTYPE, T, 3, INTEGERS)       \
  QUANTIZED_GROUPS("b4", DTYPE, T, 4, INTEGERS)       \
  QUANTIZED_GROUPS("b5", DTYPE, T, 5, INTEGERS)       \
  QUANTIZED_GROUPS("b6", DTYPE, T, 6, INTEGERS)       \
  QUANTIZED_GROUPS("b8", DTYPE, T, 8, INTEGERS)       \
  QUANTIZED_BANDS("mxfp4", DTYPE, T, 4, MX_FLOATS, 1) \
  QUANTIZED_BANDS("mxfp8", DTYPE, T, 8, MX_FLOATS, 1) \
  QUANTIZED_BANDS("nvfp4", DTYPE, T, 4, NV_FLOATS, 1)

QUANTIZED_FEW_FORMATS("float16", half)
QUANTIZED_FEW_FORMATS("bfloat16", bfloat)
