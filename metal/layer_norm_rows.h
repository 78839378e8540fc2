#pragma once

#include "rms_norm_sums.h"
#include "rows.h"

// Normalizes rows. A `Source` provides the elements. With CENTERED this is layer normalization.
// Otherwise it is RMS normalization, which has no mean and no bias.

/** A source of elements: a row in memory. */
template <typename T>
struct Plain {
  const device T* x;

  METAL_FUNC packed4<T> read(uint at, uint axis) const {
    return load4(x, at, axis, T(0.0f));
  }
  METAL_FUNC packed4<T> again(uint at, uint axis) const {
    return load4(x, at, axis, T(0.0f));
  }
};

/** The optional weight and bias: a normalized row is multiplied by weight, then bias is added. */
template <typename T>
struct Affine {
  const device T* weight;
  const device T* bias;
  uint weighted;
  uint biased;
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

/** Rounds the result of each step to T, as in MLX's composition of ops. */
template <typename T, bool CENTERED>
METAL_FUNC packed4<T> normalized(
    packed4<T> x, float mean, float inverse, packed4<T> weight, packed4<T> bias, Affine<T> affine) {
  float values[READS];
  for (uint i = 0; i < READS; i++) {
    values[i] = (CENTERED ? float(x[i]) - mean : float(x[i])) * inverse;
  }
  packed4<T> y = rounded<T>(values);
  if (affine.weighted) {
    y = times<T>(weight, y);
  }
  if (CENTERED && affine.biased) {
    y = plus<T>(y, bias);
  }
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

template <typename T, bool CENTERED, typename Source, typename Params, typename Row, uint QUADS>
METAL_FUNC void normalize(
    Source source,
    Affine<T> affine,
    device T* out,
    constant Params& params,
    Row row,
    Quads<QUADS>) {
  packed4<T> x[QUADS];
  packed4<T> weights[QUADS];
  packed4<T> biases[QUADS];
  for (uint q = 0; q < QUADS; q++) {
    x[q] = source.read(row.at(q), params.axis);
  }
  const uint axis = params.axis;
  const bool early = LOADS_EARLY || (Row::EARLY && !CENTERED);
  float sum = 0.0f;
  for (uint q = 0; q < QUADS; q++) {
    weights[q] = x[q];
    biases[q] = x[q];
    if (early) {
      load_affine<T, CENTERED>(weights[q], biases[q], affine, row.at(q), axis);
    }
    sum = CENTERED ? add_values<T>(sum, x[q]) : add_squares<T>(sum, x[q]);
  }
  sum = row.sum(sum, 0);
  float mean = 0.0f;
  if (CENTERED) {
    mean = sum / float(axis);
    float squares = 0.0f;
    for (uint q = 0; q < QUADS; q++) {
      squares = add_deviations<T>(squares, x[q], mean, row.at(q), axis);
    }
    sum = row.sum(squares, 1);
  }
  const float inverse = inverse_root(sum, axis, params.eps);
  for (uint q = 0; q < QUADS; q++) {
    const uint at = row.at(q);
    if (!CENTERED) {
      keep_packed<T>(x[q]);
    }
    if (!early) {
      load_affine<T, CENTERED>(weights[q], biases[q], affine, at, axis);
    }
    store4(
        out, at, axis, normalized<T, CENTERED>(x[q], mean, inverse, weights[q], biases[q], affine));
  }
}

/** The mean of the quads that a thread has read, and the sum of squared deviations from it. */
struct Moments {
  float count;
  float mean;
  float squares;
};

/** Adds a quad by the update of Chan, Golub and LeVeque: one pass, without cancellation. */
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

/** Reads a row of any length twice. Each thread reads the same elements both times. */
template <typename T, bool CENTERED, typename Source, typename Params, typename Row>
METAL_FUNC void normalize(
    Source source, Affine<T> affine, device T* out, constant Params& params, Row row, Quads<0>) {
  Moments seen = {0.0f, 0.0f, 0.0f};
  for (uint at = row.at(0); at < params.axis; at += row.stride()) {
    const packed4<T> x = source.read(at, params.axis);
    if (CENTERED) {
      seen = add_quad<T>(seen, x, at, params.axis);
    } else {
      seen.squares = add_squares<T>(seen.squares, x);
    }
  }
  const uint axis = params.axis;
  float mean = 0.0f;
  if (CENTERED) {
    mean = row.sum(seen.count * seen.mean, 0) / float(axis);
    const float delta = seen.mean - mean;
    seen.squares += seen.count * delta * delta;
  }
  const float inverse = inverse_root(row.sum(seen.squares, CENTERED), axis, params.eps);
  for (uint at = row.at(0); at < axis; at += row.stride()) {
    const packed4<T> x = source.again(at, axis);
    packed4<T> weights = x;
    packed4<T> biases = x;
    load_affine<T, CENTERED>(weights, biases, affine, at, axis);
    store4(out, at, axis, normalized<T, CENTERED>(x, mean, inverse, weights, biases, affine));
  }
}
