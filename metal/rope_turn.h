// Rotates pairs of features. The kernels of rope and rope_append use this file.
#pragma once

#include "rope_products.h"

/** cos and sin of the angle of a position and a pair. The inverse rotation negates the sine. */
struct Turn {
  float cosine;
  float sine;
};

/** Returns the reciprocal of the period of pair `i`, from `freqs` or as a power of the base. */
template <bool EXPLICIT>
METAL_FUNC float inverse_frequency(const device float* freqs, uint i, uint pairs, float log2_base) {
  return EXPLICIT ? 1.0f / freqs[i] : precise::exp2(-(float(i) / float(pairs)) * log2_base);
}

METAL_FUNC Turn turn(int position, float inverse_frequency, float scale, float direction) {
  const float angle = scale * float(position) * inverse_frequency;
  // The fast variants of sin and cos lose accuracy outside [-pi, pi], and an angle can be as large
  // as a position.
  return {precise::cos(angle), direction * precise::sin(angle)};
}

template <typename T>
METAL_FUNC packed2<T> rotated(packed2<T> pair, Turn by) {
  const float a = float(pair[0]);
  const float b = float(pair[1]);
  packed2<T> turned;
  turned[0] = T(difference_of_products(a, by.cosine, b, by.sine));
  turned[1] = T(sum_of_products(a, by.sine, b, by.cosine));
  return turned;
}

/** Pair `i` of a row: neighbors if interleaved ("traditional" in MLX), else `pairs` apart. */
template <typename T, bool INTERLEAVED>
METAL_FUNC packed2<T> load_pair(const device T* row, uint i, uint pairs) {
  if (INTERLEAVED) {
    return *(const device packed2<T>*)(row + 2 * i);
  }
  packed2<T> pair;
  pair[0] = row[i];
  pair[1] = row[pairs + i];
  return pair;
}

template <typename T, bool INTERLEAVED>
METAL_FUNC void store_pair(device T* row, uint i, uint pairs, packed2<T> pair) {
  if (INTERLEAVED) {
    *(device packed2<T>*)(row + 2 * i) = pair;
    return;
  }
  row[i] = pair[0];
  row[pairs + i] = pair[1];
}
