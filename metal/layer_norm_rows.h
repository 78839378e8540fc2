#pragma once

#include "rms_norm_sums.h"

// Shared by the kernels that normalize rows, for any source of the elements. CENTERED is
// layer normalization; otherwise it is RMS normalization, which has no mean and no bias.

/** The weight that multiplies a normalized row and the bias that is added, if present. */
template <typename T>
struct Affine {
  const device T* weight;
  const device T* bias;
  uint weighted;
  uint biased;
};

/** The threads of a row that has one whole SIMD group. */
struct SimdRow {
  uint index;
  uint threads;

  METAL_FUNC float sum(float value, uint) const {
    return simd_sum(value);
  }
};

/** The threads of a row that has a whole threadgroup. Every sum needs separate slots. */
struct GroupRow {
  uint index;
  uint threads;
  threadgroup float* slots;
  Place place;

  METAL_FUNC float sum(float value, uint which) const {
    return group_sum_at_once(value, slots + which * place.simds, place);
  }
};

template <typename T>
METAL_FUNC float add_values(float sum, packed4<T> x) {
  for (uint i = 0; i < READS; i++) {
    sum += float(x[i]);
  }
  return sum;
}

/** Adds (x - mean)^2 for the elements within the row. */
template <typename T>
METAL_FUNC float add_deviations(float sum, packed4<T> x, float mean, uint at, uint axis) {
  const int left = int(axis) - int(at);
  if (WHOLE_QUADS && left <= 0) {
    return sum;
  }
  for (int i = 0; i < int(READS); i++) {
    const float deviation = WHOLE_QUADS || i < left ? float(x[i]) - mean : 0.0f;
    sum += deviation * deviation;
  }
  return sum;
}

/** Each step is rounded to T before the next, as in MLX's composition. */
template <typename T, bool CENTERED>
METAL_FUNC packed4<T> normalized(
    packed4<T> x, float mean, float inverse, packed4<T> weight, packed4<T> bias, Affine<T> affine) {
#if MLXP_READS == 4
  packed4<T> y;
  for (uint i = 0; i < READS; i++) {
    float value = CENTERED ? float(x[i]) - mean : float(x[i]);
    y[i] = T(value * inverse);
    if (affine.weighted) {
      y[i] = T(float(weight[i]) * float(y[i]));
    }
    if (CENTERED && affine.biased) {
      y[i] = T(float(y[i]) + float(bias[i]));
    }
  }
#else
  float values[READS];
  for (uint i = 0; i < READS; i++) {
    values[i] = (CENTERED ? float(x[i]) - mean : float(x[i])) * inverse;
  }
  packed4<T> y = msl::rounded<T>(values);
  if (affine.weighted) {
    y = msl::times(weight, y);
  }
  if (CENTERED && affine.biased) {
    y = msl::plus(y, bias);
  }
#endif
  return y;
}

/** Loads the weight and the bias for a quad, if present. */
template <typename T, bool CENTERED>
METAL_FUNC void load_affine(
    thread packed4<T>& weight, thread packed4<T>& bias, Affine<T> affine, uint at, uint axis) {
  if (affine.weighted) {
    weight = load4(affine.weight, at, axis, T(0.0f));
  }
  if (CENTERED && affine.biased) {
    bias = load4(affine.bias, at, axis, T(0.0f));
  }
}

/** Normalizes the quads of a row that its threads hold. */
template <typename T, uint QUADS, bool CENTERED, typename Row>
METAL_FUNC void normalize_held(
    const thread packed4<T>* x, Affine<T> affine, device T* out, uint axis, float eps, Row row) {
  packed4<T> weights[QUADS];
  packed4<T> biases[QUADS];
  float sum = 0.0f;
  for (uint q = 0; q < QUADS; q++) {
    const uint at = (q * row.threads + row.index) * READS;
    weights[q] = x[q];
    biases[q] = x[q];
    if (LOADS_EARLY) {
      load_affine<T, CENTERED>(weights[q], biases[q], affine, at, axis);
    }
    sum = CENTERED ? add_values<T>(sum, x[q]) : add_squares<T>(sum, x[q]);
  }
  sum = row.sum(sum, 0);
  float mean = 0.0f;
  if (CENTERED) {
    mean = sum / float(axis);
    float squares = 0.0f;
    for (uint q = 0; q < QUADS; q++) {
      squares = add_deviations<T>(squares, x[q], mean, (q * row.threads + row.index) * READS, axis);
    }
    sum = row.sum(squares, 1);
  }
  const float inverse = inverse_root(sum, axis, eps);
  for (uint q = 0; q < QUADS; q++) {
    const uint at = (q * row.threads + row.index) * READS;
    if (!LOADS_EARLY) {
      load_affine<T, CENTERED>(weights[q], biases[q], affine, at, axis);
    }
    store4(
        out, at, axis, normalized<T, CENTERED>(x[q], mean, inverse, weights[q], biases[q], affine));
  }
}

/** The mean and squared deviations of the elements that a thread has read, quad by quad. */
struct Moments {
  float count;
  float mean;
  float squares;
};

/** Chan, Golub and LeVeque's update: reading the row once suffices, and nothing cancels. */
template <typename T>
METAL_FUNC Moments add_quad(Moments seen, packed4<T> x, uint at, uint axis) {
  const float count = float(at + READS <= axis ? uint(READS) : axis - at);
  const float mean = add_values<T>(0.0f, x) / count;
  const float total = seen.count + count;
  const float delta = mean - seen.mean;
  const float share = count / total;
  Moments next;
  next.count = total;
  next.mean = seen.mean + delta * share;
  next.squares = add_deviations<T>(seen.squares, x, mean, at, axis);
  next.squares += delta * (delta * (seen.count * share));
  return next;
}

/** Normalizes a row whose elements are read again, each by the thread that read it first. */
template <typename T, bool CENTERED>
METAL_FUNC void normalize_again(
    const device T* x,
    Moments seen,
    Affine<T> affine,
    device T* out,
    uint axis,
    float eps,
    GroupRow row) {
  float mean = 0.0f;
  float squares = seen.squares;
  if (CENTERED) {
    mean = row.sum(seen.count * seen.mean, 0) / float(axis);
    const float delta = seen.mean - mean;
    squares += seen.count * delta * delta;
  }
  const float inverse = inverse_root(row.sum(squares, 1), axis, eps);
  for (uint at = row.index * READS; at < axis; at += row.threads * READS) {
    packed4<T> values = load4(x, at, axis, T(0.0f));
    packed4<T> weights = values;
    packed4<T> biases = values;
    load_affine<T, CENTERED>(weights, biases, affine, at, axis);
    store4(out, at, axis, normalized<T, CENTERED>(values, mean, inverse, weights, biases, affine));
  }
}
