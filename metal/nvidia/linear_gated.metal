#include "activation_functions.h"
#include "linear.h"
#include "nvidia/linear_tiles.h"
#include "rms_norm_sums.h"

/** The threadgroup memory for the norm of the row of x. A unit is eight elements. */
template <typename T>
struct NormStage {
  const device T* x;
  const device T* norm;
  threadgroup uint4* staged; // x, then the norm's weight
  uint units;
};

/** The units of x and of the norm's weight that a thread loads first. */
struct NormUnits {
  uint4 x[LINEAR_GATED_EARLY];
  uint4 norm[LINEAR_GATED_EARLY];
};

template <typename T>
METAL_FUNC void load_units(thread NormUnits& early, NormStage<T> stage, Place place) {
  for (uint i = 0; i < LINEAR_GATED_EARLY; i++) {
    const uint unit = i * place.threads + place.index;
    if (unit < stage.units) {
      early.x[i] = load_once((const device uint*)(stage.x + unit * 8));
      early.norm[i] = load_once((const device uint*)(stage.norm + unit * 8));
    }
  }
}

/** Adds the squares of READS staged elements to `sum`, in the order of the row. */
template <typename T>
METAL_FUNC float add_staged(float sum, const threadgroup T* from) {
  const vec<uint, READS / 2> words = *(const threadgroup vec<uint, READS / 2>*)from;
  for (uint i = 0; i < READS / 2; i++) {
    const vec<T, 2> both = as_type<vec<T, 2> >(words[i]);
    for (uint j = 0; j < 2; j++) {
      const float value = float(both[j]);
      sum += value * value;
    }
  }
  return sum;
}

/** Normalizes a unit, which is eight elements. Each step is rounded to T, as in `rms_norm`. */
template <typename T>
METAL_FUNC uint4 normalized_unit(uint4 x, uint4 norm, float inverse) {
  for (uint i = 0; i < 4; i++) {
    const vec<T, 2> both = as_type<vec<T, 2> >(x[i]);
    const vec<T, 2> weight = as_type<vec<T, 2> >(norm[i]);
    const uint scaled = two_elements<T>(float(both[0]) * inverse, float(both[1]) * inverse);
    const vec<T, 2> y = as_type<vec<T, 2> >(scaled);
    x[i] = two_elements<T>(float(y[0]) * float(weight[0]), float(y[1]) * float(weight[1]));
  }
  return x;
}

/**
 * Copies the row and the norm's weight to `stage.staged`, and normalizes the row there. The squares
 * are added in the order of `rms_norm`, which uses `params.sums` threads.
 */
template <typename T>
METAL_FUNC void stage_normed(
    const thread NormUnits& early,
    NormStage<T> stage,
    threadgroup float* slots,
    Place place,
    constant LinearGatedParams& params) {
  for (uint i = 0; i < LINEAR_GATED_EARLY; i++) {
    const uint unit = i * place.threads + place.index;
    if (unit < stage.units) {
      stage.staged[unit] = early.x[i];
      stage.staged[stage.units + unit] = early.norm[i];
    }
  }
  const uint rest = LINEAR_GATED_EARLY * place.threads + place.index;
  for (uint unit = rest; unit < stage.units; unit += place.threads) {
    stage.staged[unit] = load_words((const device uint*)(stage.x + unit * 8));
    stage.staged[stage.units + unit] = load_words((const device uint*)(stage.norm + unit * 8));
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const threadgroup T* row = (const threadgroup T*)stage.staged;
  for (uint part = place.index; part < params.sums; part += 2 * place.threads) {
    float sums[2] = {0.0f, 0.0f};
    for (uint at = part * READS; at < params.k; at += params.sums * READS) {
      const uint other = at + place.threads * READS;
      sums[0] = add_staged(sums[0], row + at);
      sums[1] = other < params.k ? add_staged(sums[1], row + other) : sums[1];
    }
    simd_sums<2>(sums);
    if (place.lane == 0) {
      slots[part / SIMD_WIDTH] = sums[0];
      slots[part / SIMD_WIDTH + place.simds] = sums[1]; // not read if there is no such part
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const bool summed = place.lane < params.sums / SIMD_WIDTH;
  const float sum = simd_sum(summed ? slots[place.lane] : 0.0f);
  const float inverse = inverse_root(sum, params.k, params.eps);
  for (uint unit = place.index; unit < stage.units; unit += place.threads) {
    const uint4 weight = stage.staged[stage.units + unit];
    stage.staged[unit] = normalized_unit<T>(stage.staged[unit], weight, inverse);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

/**
 * Computes silu(y * gate^T) * (y * up^T) where y is the normalized row of x. The products are
 * computed as in `linear_tiles`. A block is LINEAR_TILE_ROWS rows of weights, half of them from
 * each of the two matrices. A threadgroup normalizes x once, then computes several blocks.
 */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(LINEAR_GATED_THREADS)]] void linear_gated(
    const device T* x [[buffer(0)]],
    const device T* gate [[buffer(1)]],
    const device T* up [[buffer(2)]],
    const device T* norm [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant LinearGatedParams& params [[buffer(5)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint group [[threadgroup_position_in_grid]],
    uint groups [[threadgroups_per_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  constexpr uint COLUMNS = LINEAR_TILE_ROWS / 2; // of the result, in a block
  const uint g = lane / 4;
  const uint t = lane % 4;
  const uint start = simd * LINEAR_TILE_COLUMNS + t * 8;
  const uint step = simds * LINEAR_TILE_COLUMNS;
  threadgroup float* slots = scratch;
  threadgroup float* partial = slots + LINEAR_GATED_SLOTS;
  threadgroup uint4* staged = (threadgroup uint4*)(partial + 2 * simds * LINEAR_TILE_ROWS);

  // Loads return in order: x arrives first, then the first weights, which arrive during staging.
  const NormStage<T> stage = {x, norm, staged, params.k / 8};
  NormUnits early;
  load_units(early, stage, {index, threads, lane, simd, simds});
  size_t row = size_t(min(group * COLUMNS + g, params.n - 1)) * params.k;
  const device T* both[2] = {gate + row, up + row};
  TileWeights weights;
  load_tile_weights(weights, both, start, params.k);
  stage_normed(early, stage, slots, {index, threads, lane, simd, simds}, params);

  uint turn = 0;
  for (uint block = group; block < params.blocks; block += groups, turn ^= 1) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (uint k = start; k - t * 8 < params.k; k += step) {
      for (uint i = 0; i < LINEAR_TILE_LOADS; i++) {
        const uint at = k + 32 * i;
        const uint4 values = at < params.k ? staged[at / 8] : uint4(0);
        for (uint j = 0; j < 4; j += 2) {
          const uint left[4] = {
              weights.words[0][i][j],
              weights.words[1][i][j],
              weights.words[0][i][j + 1],
              weights.words[1][i][j + 1]};
          const uint right[2] = {values[j], values[j + 1]};
          multiply_add<T>(sums, left, right, lane);
        }
      }
      uint next = k + step;
      if (next - t * 8 >= params.k) { // on to the threadgroup's next block, if there is one
        next = block + groups < params.blocks ? start : params.k;
        row = size_t(min((block + groups) * COLUMNS + g, params.n - 1)) * params.k;
        both[0] = gate + row;
        both[1] = up + row;
      }
      load_tile_weights(weights, both, next, params.k);
    }

    // Two buffers alternate, so that threads read these sums while other threads compute the next
    // sums.
    threadgroup float* of_block = partial + turn * simds * LINEAR_TILE_ROWS;
    if (t == 0) { // lanes with the first column, the row of x
      of_block[simd * LINEAR_TILE_ROWS + g] = sums[0];
      of_block[simd * LINEAR_TILE_ROWS + g + COLUMNS] = sums[2];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint column = block * COLUMNS + index;
    if (index < COLUMNS && column < params.n) {
      float of_gate = 0.0f;
      float of_up = 0.0f;
      for (uint s = 0; s < simds; s++) {
        of_gate += of_block[s * LINEAR_TILE_ROWS + index];
        of_up += of_block[s * LINEAR_TILE_ROWS + index + COLUMNS];
      }
      out[column] = combined<T, ACTIVATION_SWIGLU>(T(of_gate), T(of_up));
    }
  }
}

MLXP_KERNEL("mlxp_linear_gated_float16", linear_gated<half>)
MLXP_KERNEL("mlxp_linear_gated_bfloat16", linear_gated<bfloat>)
