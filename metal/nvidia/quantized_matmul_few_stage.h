// Normalizes and stages x for products of few rows on NVIDIA GPUs. A band is a block of rows of x
// that a kernel computes together, and `text` is the index of a row in it.
#pragma once

#include "nvidia/fragments.h"
#include "quantized_matmul_stage.h"

enum : uint {
  FEW_BLOCK = 128, // columns of x that a SIMD group multiplies at a time
  FEW_CHUNK = 32,  // of them for each of four lanes
  FEW_UNITS = FEW_CHUNK / QUANTIZED_VALUES,
  FEW_ROWS = 16, // of weights for a SIMD group
};

/** The staging area for `texts` rows of x: `count` columns of each row, from column k0 on. */
template <typename T>
struct FewStage {
  threadgroup T* values;
  threadgroup float* totals; // of the columns, for all rows of x
  uint k0;
  uint count;
  uint texts;

  METAL_FUNC uint pitch() const {
    return count + QUANTIZED_FEW_PAD;
  }
  METAL_FUNC uint units() const { // of QUANTIZED_VALUES columns of a row
    return count / QUANTIZED_VALUES;
  }
};

/**
 * Stages the unit `index` if it exists. A unit is QUANTIZED_VALUES columns of a row. The order is
 * the one in which `few_numbers` returns the weights: eight values for each lane of a block, lane
 * by lane. A total is the sum of the columns of OF_TOTAL units. All lanes of a SIMD group call this
 * function.
 */
template <typename T, uint BITS, uint BAND, uint OF_TOTAL>
METAL_FUNC void stage_few(
    const device T* x,
    const device T* norm,
    uint top,
    FewStage<T> stage,
    uint index,
    const threadgroup float* inverses,
    uint lane,
    constant QuantizedMatmulParams& params) {
  typedef Format<BITS> F;
  const uint text = stage.texts == 1 ? 0 : index / stage.units();
  const uint unit = index - text * stage.units();
  const uint k = stage.k0 + unit * QUANTIZED_VALUES;
  const bool there = index < stage.texts * stage.units();
  const bool live = there && top + text < params.rows && k < params.axis;
  const device T* row = x + size_t(live ? top + text : 0) * params.axis;
  T values[QUANTIZED_VALUES];
  float total = 0.0f;
  for (uint i = 0; i < QUANTIZED_VALUES; i += READS) {
    Values<T> loaded = load_values(row, norm, k + i, live, params);
    if (params.normed != 0) {
      loaded.x = normalized(loaded, live ? inverses[text] : 0.0f);
    }
    for (uint j = 0; j < READS; j++) {
      values[i + j] = loaded.x[j];
      total += float(values[i + j]);
    }
  }
  if (OF_TOTAL > 1) {
    float of_units = 0.0f;
    for (uint i = 0; i < OF_TOTAL; i++) {
      of_units += simd_shuffle(total, ushort(lane / OF_TOTAL * OF_TOTAL + i));
    }
    total = of_units;
  }
  if (!there) {
    return;
  }
  if (OF_TOTAL == 1 || unit % OF_TOTAL == 0) {
    threadgroup float* to = stage.totals + unit / OF_TOTAL * BAND;
    to[text] = total;
    if (text == stage.texts - 1) {
      for (uint other = stage.texts; other < BAND; other++) {
        to[other] = 0.0f;
      }
    }
  }
  constexpr uint UNITS = FEW_BLOCK / QUANTIZED_VALUES; // of a block
  threadgroup T* to = stage.values + text * stage.pitch() + unit / UNITS * FEW_BLOCK +
                      unit % FEW_UNITS * (FEW_BLOCK / FEW_UNITS) + unit % UNITS / FEW_UNITS * 8;
  for (uint half_of_unit = 0; half_of_unit < 2; half_of_unit++) {
    uint4 pairs;
    for (uint i = 0; i < 4; i++) {
      const uint p = half_of_unit * 4 + i;
      const uint from = p / F::per_half * 2 * F::per_half + p % F::per_half;
      pairs[i] = as_type<uint>(vec<T, 2>(values[from], values[from + F::per_half]));
    }
    *(threadgroup uint4*)(to + half_of_unit * FEW_CHUNK) = pairs;
  }
}

/**
 * Computes the reciprocal root mean squares of the rows of a band. They are available in
 * threadgroup memory after a barrier. Additions have the order of `find_inverse`.
 */
template <typename T>
METAL_FUNC void few_inverses(
    const device T* x,
    uint top,
    uint texts,
    threadgroup float* inverses,
    threadgroup float* slots,
    Place place,
    constant QuantizedMatmulParams& params) {
  constexpr uint STEP = QUANTIZED_NORM_SUMS * READS;
  constexpr uint SUMS = QUANTIZED_NORM_SUMS / SIMD_WIDTH;
  for (uint i = place.index; i < texts * QUANTIZED_NORM_SUMS; i += place.threads) {
    const device T* row = x + size_t(top + i / QUANTIZED_NORM_SUMS) * params.axis;
    float sum = 0.0f;
    for (uint at = i % QUANTIZED_NORM_SUMS * READS; at < params.axis; at += 2 * STEP) {
      packed4<T> quads[2];
      for (uint j = 0; j < 2; j++) {
        quads[j] = *(const device packed4<T>*)(row + min(at + j * STEP, params.axis - READS));
      }
      for (uint j = 0; j < 2 * READS; j++) {
        const float value =
            at + j / READS * STEP < params.axis ? float(quads[j / READS][j % READS]) : 0.0f;
        sum += value * value;
      }
    }
    sum = simd_sum(sum);
    if (place.lane == 0) {
      slots[i / SIMD_WIDTH] = sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint text = place.simd; text < texts; text += place.simds) {
    const float sum = simd_sum(place.lane < SUMS ? slots[text * SUMS + place.lane] : 0.0f);
    if (place.lane == 0) {
      inverses[text] = precise::rsqrt(sum / float(params.axis) + params.eps);
    }
  }
}
