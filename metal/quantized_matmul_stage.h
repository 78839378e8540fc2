// Normalizes and stages x for products of few rows. A band is a block of up to M rows of x that a
// kernel computes together.
#pragma once

#include "quantized_matmul_format.h"

/**
 * Returns the reciprocal root mean square of the only row, in every thread. The order of additions
 * does not depend on the number of threads.
 */
template <typename T>
METAL_FUNC float find_inverse(
    const device T* x,
    threadgroup float* slots,
    Place place,
    constant QuantizedMatmulParams& params) {
  constexpr uint STEP = QUANTIZED_NORM_SUMS * READS;
  for (uint part = place.index; part < QUANTIZED_NORM_SUMS; part += place.threads) {
    float sum = 0.0f;
    for (uint at = part * READS; at < params.axis; at += QUANTIZED_NORM_AHEAD * STEP) {
      packed4<T> quads[QUANTIZED_NORM_AHEAD];
      for (uint i = 0; i < QUANTIZED_NORM_AHEAD; i++) {
        quads[i] = *(const device packed4<T>*)(x + min(at + i * STEP, params.axis - READS));
      }
      for (uint i = 0; i < QUANTIZED_NORM_AHEAD; i++) {
        for (uint j = 0; j < READS; j++) {
          const float value = at + i * STEP < params.axis ? float(quads[i][j]) : 0.0f;
          sum += value * value;
        }
      }
    }
    sum = simd_sum(sum);
    if (place.lane == 0) {
      slots[part / SIMD_WIDTH] = sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint sums = QUANTIZED_NORM_SUMS / SIMD_WIDTH;
  const float sum = simd_sum(place.lane < sums ? slots[place.lane] : 0.0f);
  return precise::rsqrt(sum / float(params.axis) + params.eps);
}

/**
 * Computes the reciprocal root mean squares of the rows of a band, in threadgroup memory. The order
 * of additions in each row is the order for a single row.
 */
template <typename T, uint M>
METAL_FUNC void find_inverses(
    const device T* x,
    uint top,
    threadgroup float* inverses,
    threadgroup float* slots,
    Place place,
    constant QuantizedMatmulParams& params) {
  for (uint m = 0; m < M && top + m < params.rows; m++) {
    const float inverse = find_inverse(x + size_t(top + m) * params.axis, slots, place, params);
    if (place.index == 0) {
      inverses[m] = inverse;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

/** Elements of x, and the weights of the norm for their columns. */
template <typename T>
struct Values {
  packed4<T> x;
  packed4<T> norm;
};

template <typename T>
METAL_FUNC packed4<T> normalized(Values<T> values, float inverse) {
  for (uint i = 0; i < READS; i++) {
    values.x[i] = T(float(T(float(values.x[i]) * inverse)) * float(values.norm[i]));
  }
  return values.x;
}

/**
 * Loads elements k, ..., k + READS - 1 of x and of the weights of the norm; zeros unless `live`.
 */
template <typename T>
METAL_FUNC Values<T> load_values(
    const device T* row,
    const device T* norm,
    uint k,
    bool live,
    constant QuantizedMatmulParams& params) {
  Values<T> values;
  for (uint i = 0; i < READS; i++) {
    values.x[i] = T(0.0f);
    values.norm[i] = T(0.0f);
  }
  if (live) {
    values.x = *(const device packed4<T>*)(row + k);
    if (params.normed != 0) {
      values.norm = *(const device packed4<T>*)(norm + k);
    }
  }
  return values;
}

/**
 * The staging area for the rows of a band. It has `lanes` * QUANTIZED_VALUES columns of each row,
 * beginning with column k0.
 */
template <typename T>
struct Stage {
  threadgroup T* values;
  threadgroup float* totals;
  uint k0;
  uint lanes;
};

/**
 * Stages the values with number `index`, which a lane multiplies in a step, and their sum. A SIMD
 * group reads them in this order: by step, then by row, then by position, for all lanes. Values
 * beyond the ends are zeros. With LOADED, `loaded` has the values of the only row.
 */
template <typename T, uint M, bool LOADED>
METAL_FUNC void stage_values(
    const thread Values<T>* loaded,
    const device T* x,
    const device T* norm,
    uint top,
    Stage<T> stage,
    uint index,
    float inverse,
    const threadgroup float* inverses,
    constant QuantizedMatmulParams& params) {
  const uint m = M == 1 ? 0 : index / stage.lanes;
  const uint at = M == 1 ? index : index % stage.lanes;
  const uint k = stage.k0 + at * QUANTIZED_VALUES;
  const bool live = top + m < params.rows && k < params.axis;
  const uint of_step = (at / SIMD_WIDTH * M + m) * SIMD_WIDTH;
  threadgroup T* to = stage.values + of_step * QUANTIZED_VALUES + at % SIMD_WIDTH;
  float total = 0.0f;
  for (uint from = 0; from < QUANTIZED_VALUES; from += READS) {
    packed4<T> quad;
    for (uint i = 0; i < READS; i++) {
      quad[i] = T(0.0f);
    }
    if (LOADED) {
      quad = loaded[from / READS].x;
      if (params.normed != 0) {
        quad = normalized(loaded[from / READS], inverse);
      }
    } else if (live) {
      const device T* row = x + size_t(top + m) * params.axis;
      quad = *(const device packed4<T>*)(row + k + from);
      if (params.normed != 0) {
        Values<T> values;
        values.x = quad;
        values.norm = *(const device packed4<T>*)(norm + k + from);
        quad = normalized(values, M == 1 ? inverse : inverses[m]);
      }
    }
    for (uint i = 0; i < READS; i++) {
      to[(from + i) * SIMD_WIDTH] = quad[i];
      total += float(quad[i]);
    }
  }
  stage.totals[of_step + at % SIMD_WIDTH] = total;
}
