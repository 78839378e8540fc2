#include "nvidia/quantized_matmul_few.h"

/**
 * Multiplies up to BAND rows of x with packed weights. Each SIMD group multiplies FEW_ROWS rows of
 * weights, as small matrices, for TURNS of the `splits` parts of the columns. Other SIMD groups
 * compute the other parts. Each column of the right matrix has a row of x in the columns of one
 * group of weights, and zeros elsewhere, so that the result has a separate sum for each group. If
 * groups are shorter than the columns of a lane, a lane's columns replace the group. The order of
 * additions does not depend on BAND or TURNS.
 */
template <typename T, uint BITS, uint FLOATS, uint SPAN, uint BAND, uint TURNS>
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
  constexpr uint AHEAD = TURNS > 1 && SPAN > 1 ? 2 : 1; // blocks whose weights are loaded early
  constexpr uint OF_TOTAL = BAND == 2 ? 1 : SPAN * FEW_UNITS; // takes less time before the products
  constexpr uint TOTALS = FEW_BLOCK / QUANTIZED_VALUES / OF_TOTAL * BAND; // of a block
  const Place place = {thread_index, group_size.x, lane, simd, simds};
  const uint splits = params.splits;
  const uint ways = splits / TURNS;
  const uint top = group.y * BAND;
  const uint g = lane / 4;
  const uint t = lane % 4;

  threadgroup float* zeros = scratch;
  threadgroup float* inverses = zeros + QUANTIZED_FEW_ZEROS;
  threadgroup float* slots = inverses + QUANTIZED_BAND;
  threadgroup float* partial = slots + QUANTIZED_FEW_SLOTS;
  const uint texts = min(params.rows, BAND);
  const uint count = quantized_few_staged(params.rows, BAND, params.axis, splits);
  threadgroup float* totals = partial + simds * TURNS * FEW_ROWS * BAND;
  threadgroup T* values = (threadgroup T*)(totals + BAND * count / QUANTIZED_VALUES);

  const Part<T> all[3] = {
      {packed0, scales0, biases0}, {packed1, scales1, biases1}, {packed2, scales2, biases2}};
  FewCursor<T> cursor;
  cursor.block = group.x;
  begin_block<T, BITS, FLOATS>(cursor, all, ways, place, params);

  // Load the first weights early, so that they arrive while the threads stage x.
  FewWeights<T, BITS, FLOATS> weights[AHEAD];
  const uint step = splits * FEW_BLOCK;
  uint k = simd % ways * TURNS * FEW_BLOCK;
  for (uint u = 0; u < AHEAD; u++) {
    load_few<T, BITS, FLOATS, SPAN>(weights[u], cursor.parts, k + u * FEW_BLOCK, t, params);
  }
  const uint exponents = in_register(few_exponents<T, BITS>());

  for (uint i = thread_index; i < QUANTIZED_FEW_ZEROS; i += place.threads) {
    zeros[i] = 0.0f;
  }
  if (params.normed != 0) {
    few_inverses(x, top, min(params.rows - top, texts), inverses, slots, place, params);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  float sums[TURNS][PASSES * 4];
  for (uint i = 0; i < TURNS * PASSES * 4; i++) {
    sums[i / (PASSES * 4)][i % (PASSES * 4)] = 0.0f;
  }
  for (uint k0 = 0; k0 < params.axis; k0 += count) {
    if (k0 > 0) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const FewStage<T> stage = {values, totals, k0, count, texts};
    for (uint i = 0; i < texts * stage.units(); i += place.threads) {
      stage_few<T, BITS, BAND, OF_TOTAL>(
          x, norm, top, stage, i + thread_index, inverses, lane, params);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint end = min(k0 + count, params.axis);
    // In each column of the right matrix, the rows for one group of weights hold the elements of
    // one row of x, and the other rows hold zeros. `text` is the index of the row of x.
    FewPlaces<PASSES> places;
    const uint text = BAND == 2 ? g % 2 : g;
    for (uint p = 0; p < PASSES; p++) {
      const bool active = (BAND == 2 ? g / 2 : p) == t / SPAN && text < texts;
      const threadgroup T* from = values + text * stage.pitch() + (k - k0);
      places.x[p] = (const threadgroup uint4*)(active ? from : (const threadgroup T*)zeros) + t;
      places.steps[p] = active ? FEW_BLOCK / 8 : 0;
    }
    const uint of_lane = BAND == 2 ? t % (4 / SPAN) * (TOTALS * SPAN / 4) : t * 2;
    places.totals = totals + (k - k0) / FEW_BLOCK * TOTALS + of_lane;
    for (; k < end; k += step) {
      for (uint u = 0; u < TURNS; u++) {
        const uint at = k + u * FEW_BLOCK;
        if (u > 0 && at >= end) {
          break;
        }
        FewPlaces<PASSES> now = places;
        for (uint p = 0; p < PASSES; p++) {
          now.x[p] += u * places.steps[p];
        }
        now.totals += u * TOTALS;
        const bool live = at + t * FEW_CHUNK < params.axis;
        add_few<T, BITS, FLOATS, BAND, SPAN, OF_TOTAL>(
            sums[u], weights[u % AHEAD], now, live, exponents, lane);
        const uint n = u + AHEAD;
        const uint next = k + n / TURNS * step + n % TURNS * FEW_BLOCK;
        if (next < params.axis) {
          load_few<T, BITS, FLOATS, SPAN>(weights[u % AHEAD], cursor.parts, next, t, params);
        }
      }
      for (uint p = 0; p < PASSES; p++) {
        places.x[p] += splits * places.steps[p];
      }
      places.totals += splits * TOTALS;
    }
  }

  for (uint u = 0; u < TURNS; u++) {
    store_sums<BAND, SPAN>(sums[u], partial + (simd * TURNS + u) * FEW_ROWS * BAND, lane);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  write_few<T, BAND>(
      partial,
      find_part(group.x, params),
      simds / ways,
      top,
      texts,
      bias,
      residual,
      out,
      place,
      params);
}

/**
 * Computes the products of `quantized_few` with up to two rows of x, for many rows of weights. A
 * threadgroup stages x once, then computes several blocks of rows of weights one after the other.
 */
template <typename T, uint BITS, uint FLOATS, uint SPAN>
[[kernel, max_total_threads_per_threadgroup(QUANTIZED_WALK_THREADS)]] void quantized_walk(
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
    uint2 groups_of_grid [[threadgroups_per_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint2 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  constexpr uint BAND = 2;
  constexpr uint OF_TOTAL = SPAN * FEW_UNITS;
  constexpr uint TOTALS = 4 / SPAN * BAND; // of a block
  const Place place = {thread_index, group_size.x, lane, simd, simds};
  const uint splits = params.splits;
  const uint g = lane / 4;
  const uint t = lane % 4;

  threadgroup float* zeros = scratch;
  threadgroup float* inverses = zeros + QUANTIZED_FEW_ZEROS;
  threadgroup float* slots = inverses + QUANTIZED_BAND;
  threadgroup float* partial = slots + QUANTIZED_FEW_SLOTS;
  threadgroup float* totals = partial + 2 * simds * FEW_ROWS * BAND;
  const uint texts = params.rows;
  const uint count = quantized_few_staged(texts, BAND, params.axis, splits); // all of the axis
  threadgroup T* values = (threadgroup T*)(totals + BAND * count / QUANTIZED_VALUES);

  // Load the next weights early, so that they arrive while threads stage x or add products.
  const Part<T> all[3] = {
      {packed0, scales0, biases0}, {packed1, scales1, biases1}, {packed2, scales2, biases2}};
  const uint step = splits * FEW_BLOCK;
  const uint k_first = simd % splits * FEW_BLOCK;
  FewCursor<T> cursor;
  cursor.block = group.x;
  cursor.k = k_first;
  begin_block<T, BITS, FLOATS>(cursor, all, splits, place, params);
  FewWeights<T, BITS, FLOATS> weights;
  load_next<T, BITS, FLOATS, SPAN>(weights, cursor, all, groups_of_grid.x, place, params);
  const uint exponents = in_register(few_exponents<T, BITS>());

  for (uint i = thread_index; i < QUANTIZED_FEW_ZEROS; i += place.threads) {
    zeros[i] = 0.0f;
  }
  if (params.normed != 0) {
    few_inverses(x, 0, texts, inverses, slots, place, params);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  const FewStage<T> stage = {values, totals, 0, count, texts};
  for (uint i = 0; i < texts * stage.units(); i += place.threads) {
    stage_few<T, BITS, BAND, OF_TOTAL>(x, norm, 0, stage, i + thread_index, inverses, lane, params);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  uint turn = 0;
  for (uint block = group.x; block < params.blocks; block += groups_of_grid.x, turn ^= 1) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    FewPlaces<1> places;
    const bool active = g / 2 == t / SPAN && g % 2 < texts;
    const threadgroup T* values_of_lane = values + g % 2 * stage.pitch() + k_first;
    places.x[0] =
        (const threadgroup uint4*)(active ? values_of_lane : (const threadgroup T*)zeros) + t;
    places.steps[0] = active ? FEW_BLOCK / 8 : 0;
    places.totals = totals + k_first / FEW_BLOCK * TOTALS + t % (4 / SPAN) * BAND;
    for (uint k = k_first; k < params.axis; k += step) {
      const bool live = k + t * FEW_CHUNK < params.axis;
      add_few<T, BITS, FLOATS, BAND, SPAN, OF_TOTAL>(sums, weights, places, live, exponents, lane);
      load_next<T, BITS, FLOATS, SPAN>(weights, cursor, all, groups_of_grid.x, place, params);
      places.x[0] += splits * places.steps[0];
      places.totals += splits * TOTALS;
    }
    // Two buffers alternate, so that threads read these sums while other threads compute the next
    // sums.
    threadgroup float* of_block = partial + turn * simds * FEW_ROWS * BAND;
    store_sums<BAND, SPAN>(sums, of_block + simd * FEW_ROWS * BAND, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const Where where = find_part(block, params);
    write_few<T, BAND>(
        of_block, where, simds / splits, 0, texts, bias, residual, out, place, params);
  }
}

#define QUANTIZED_FEW(NAME, FORMAT, DTYPE, ...) \
  MLXP_KERNEL("mlxp_quantized_few_" NAME "_" FORMAT "_" DTYPE, __VA_ARGS__)
#define QUANTIZED_BANDS(FORMAT, DTYPE, ...)                                      \
  QUANTIZED_FEW("band2", FORMAT, DTYPE, quantized_few<__VA_ARGS__, 2, 1>)        \
  QUANTIZED_FEW("band8_turns1", FORMAT, DTYPE, quantized_few<__VA_ARGS__, 8, 1>) \
  QUANTIZED_FEW("band8_turns2", FORMAT, DTYPE, quantized_few<__VA_ARGS__, 8, 2>)
#define QUANTIZED_WALK(FORMAT, DTYPE, ...) \
  QUANTIZED_FEW("walk", FORMAT, DTYPE, quantized_walk<__VA_ARGS__>)
#define QUANTIZED_GROUPS(FORMAT, DTYPE, ...)            \
  QUANTIZED_BANDS(FORMAT "_g32", DTYPE, __VA_ARGS__, 1) \
  QUANTIZED_BANDS(FORMAT "_g64", DTYPE, __VA_ARGS__, 2) \
  QUANTIZED_BANDS(FORMAT "_g128", DTYPE, __VA_ARGS__, 4)
// `quantized_walk` has no variant for five bits, because it would need too many registers.
#define QUANTIZED_WALKS(FORMAT, DTYPE, ...)            \
  QUANTIZED_WALK(FORMAT "_g32", DTYPE, __VA_ARGS__, 1) \
  QUANTIZED_WALK(FORMAT "_g64", DTYPE, __VA_ARGS__, 2) \
  QUANTIZED_WALK(FORMAT "_g128", DTYPE, __VA_ARGS__, 4)
// Only the kernels for four and eight bits have enough registers for four turns.
#define QUANTIZED_TURNS(FORMAT, DTYPE, ...)                                                \
  QUANTIZED_FEW("band8_turns4", FORMAT "_g64", DTYPE, quantized_few<__VA_ARGS__, 2, 8, 4>) \
  QUANTIZED_FEW("band8_turns4", FORMAT "_g128", DTYPE, quantized_few<__VA_ARGS__, 4, 8, 4>)
#define QUANTIZED_FEW_FORMATS(DTYPE, T)               \
  QUANTIZED_GROUPS("b2", DTYPE, T, 2, INTEGERS)       \
  QUANTIZED_GROUPS("b3", DTYPE, T, 3, INTEGERS)       \
  QUANTIZED_GROUPS("b4", DTYPE, T, 4, INTEGERS)       \
  QUANTIZED_GROUPS("b5", DTYPE, T, 5, INTEGERS)       \
  QUANTIZED_GROUPS("b6", DTYPE, T, 6, INTEGERS)       \
  QUANTIZED_GROUPS("b8", DTYPE, T, 8, INTEGERS)       \
  QUANTIZED_WALKS("b2", DTYPE, T, 2, INTEGERS)        \
  QUANTIZED_WALKS("b3", DTYPE, T, 3, INTEGERS)        \
  QUANTIZED_WALKS("b4", DTYPE, T, 4, INTEGERS)        \
  QUANTIZED_WALKS("b6", DTYPE, T, 6, INTEGERS)        \
  QUANTIZED_WALKS("b8", DTYPE, T, 8, INTEGERS)        \
  QUANTIZED_TURNS("b4", DTYPE, T, 4, INTEGERS)        \
  QUANTIZED_TURNS("b8", DTYPE, T, 8, INTEGERS)        \
  QUANTIZED_BANDS("mxfp4", DTYPE, T, 4, MX_FLOATS, 1) \
  QUANTIZED_BANDS("mxfp8", DTYPE, T, 8, MX_FLOATS, 1) \
  QUANTIZED_BANDS("nvfp4", DTYPE, T, 4, NV_FLOATS, 1) \
  QUANTIZED_WALK("mxfp4", DTYPE, T, 4, MX_FLOATS, 1)  \
  QUANTIZED_WALK("mxfp8", DTYPE, T, 8, MX_FLOATS, 1)  \
  QUANTIZED_WALK("nvfp4", DTYPE, T, 4, NV_FLOATS, 1)

QUANTIZED_FEW_FORMATS("float16", half)
QUANTIZED_FEW_FORMATS("bfloat16", bfloat)
