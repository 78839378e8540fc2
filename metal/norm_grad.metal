#include "norm_grad.h"
#include "rows.h"

// With n = (x - m) * r, where r is the reciprocal root of the mean square and m the mean, or 0 for
// RMS normalization: the gradient of x is r * (h - mean(h) - n * mean(h * n)) with h = g * weight,
// where RMS normalization leaves out mean(h). The gradient of the weight is the sum of g * n over
// the rows, and that of the bias the sum of g.

/** A quad of a row: its elements as floats, and zeros beyond the end. */
template <typename T>
METAL_FUNC void load_floats(thread float* values, const device T* row, uint at, uint axis) {
  const packed4<T> quad = load4(row, at, axis, T(0.0f));
  for (uint i = 0; i < READS; i++) {
    values[i] = float(quad[i]);
  }
}

/** g * weight. */
template <typename T>
METAL_FUNC void load_scaled(
    thread float* values,
    const device T* g,
    const device T* weight,
    uint at,
    constant NormGradParams& params) {
  load_floats(values, g, at, params.axis);
  if (params.weighted != 0) {
    float factors[READS];
    load_floats(factors, weight, at, params.axis);
    for (uint i = 0; i < READS; i++) {
      values[i] *= factors[i];
    }
  }
}

/**
 * The gradient of x, and each row's mean and reciprocal root mean square. A thread keeps all quads
 * of a row that it reads, KEPT at most; where KEPT is 0, it reads them again for each sum.
 */
template <typename T, bool CENTERED, uint KEPT>
[[kernel]] void norm_grad_row(
    const device T* x [[buffer(0)]],
    const device T* weight [[buffer(1)]],
    const device T* g [[buffer(2)]],
    const device T* added [[buffer(3)]],
    device T* out [[buffer(4)]],
    device float* stats [[buffer(5)]],
    constant NormGradParams& params [[buffer(6)]],
    MLXP_GROUP_ROW) {
  const GroupRow<true> row = {{thread_index, threads, lane, simd, simds}, scratch};
  const size_t start = size_t(group) * params.axis;
  x += start;
  g += start;
  added += start;
  out += start;
  const float share = 1.0f / float(params.axis);
  const uint quads = KEPT > 0 ? KEPT : (params.axis + row.stride() - 1) / row.stride();
  constexpr uint ROOM = KEPT > 0 ? KEPT : 1;
  float values[ROOM][READS];
  float heights[ROOM][READS];
  float mean = 0.0f;
  if (CENTERED) {
    float sum = 0.0f;
    for (uint q = 0; q < quads; q++) {
      thread float* own = values[q % ROOM];
      load_floats(own, x, row.at(q), params.axis);
      for (uint i = 0; i < READS; i++) {
        sum += own[i];
      }
    }
    mean = row.sum(sum, 0) * share;
  }
  float squares = 0.0f;
  float height = 0.0f;
  float along = 0.0f;
  for (uint q = 0; q < quads; q++) {
    const uint at = row.at(q);
    thread float* own = values[q % ROOM];
    thread float* scaled = heights[q % ROOM];
    if (!CENTERED || KEPT == 0) {
      load_floats(own, x, at, params.axis);
    }
    load_scaled(scaled, g, weight, at, params);
    for (uint i = 0; i < READS; i++) {
      const float d = at + i < params.axis ? own[i] - mean : 0.0f;
      squares += d * d;
      height += scaled[i];
      along += d * scaled[i];
    }
  }
  // The slots of the mean are free again once every thread has passed the barriers of this sum.
  squares = row.sum(squares, 1) * share;
  along = row.sum(along, 2) * share;
  height = CENTERED ? row.sum(height, 0) * share : 0.0f;
  const float inverse = precise::rsqrt(squares + params.eps);
  const float slope = along * inverse;
  for (uint q = 0; q < quads; q++) {
    const uint at = row.at(q);
    thread float* own = values[q % ROOM];
    thread float* scaled = heights[q % ROOM];
    if (KEPT == 0) {
      load_floats(own, x, at, params.axis);
      load_scaled(scaled, g, weight, at, params);
    }
    for (uint i = 0; i < READS; i++) {
      const float n = (own[i] - mean) * inverse;
      own[i] = (scaled[i] - height - n * slope) * inverse;
    }
    if (params.added != 0) {
      load_floats(scaled, added, at, params.axis);
      for (uint i = 0; i < READS; i++) {
        own[i] += scaled[i];
      }
    }
    store4(out, at, params.axis, rounded<T>(own));
  }
  if (thread_index == 0) {
    stats[2 * group] = mean;
    stats[2 * group + 1] = inverse;
  }
}

/** Sums of a part of the rows, for the weight and then for the bias: a quad of columns a thread. */
template <typename T>
[[kernel]] void norm_grad_part(
    const device T* x [[buffer(0)]],
    const device T* g [[buffer(1)]],
    const device float* stats [[buffer(2)]],
    device float* sums [[buffer(3)]],
    constant NormGradPartParams& params [[buffer(4)]],
    uint2 place [[thread_position_in_grid]]) {
  const uint at = place.x * READS;
  if (at >= params.axis) {
    return;
  }
  float of_weight[READS];
  float of_bias[READS];
  for (uint i = 0; i < READS; i++) {
    of_weight[i] = 0.0f;
    of_bias[i] = 0.0f;
  }
  const uint first = place.y * params.part_rows;
  for (uint row = first; row < min(first + params.part_rows, params.rows); row++) {
    const size_t start = size_t(row) * params.axis;
    float values[READS];
    float gradients[READS];
    load_floats(values, x + start, at, params.axis);
    load_floats(gradients, g + start, at, params.axis);
    const float mean = stats[2 * row];
    const float inverse = stats[2 * row + 1];
    for (uint i = 0; i < READS; i++) {
      of_weight[i] += gradients[i] * ((values[i] - mean) * inverse);
      of_bias[i] += gradients[i];
    }
  }
  device float* to = sums + size_t(place.y) * 2 * params.axis;
  for (uint i = 0; i < READS; i++) {
    if (at + i < params.axis) {
      to[at + i] = of_weight[i];
      to[params.axis + at + i] = of_bias[i];
    }
  }
}

/** Adds up the parts, for one column of the weight and of the bias a thread. */
template <typename T>
[[kernel]] void norm_grad_sum(
    const device float* sums [[buffer(0)]],
    device T* of_weight [[buffer(1)]],
    device T* of_bias [[buffer(2)]],
    constant NormGradSumParams& params [[buffer(3)]],
    uint at [[thread_position_in_grid]]) {
  if (at >= params.axis) {
    return;
  }
  float weight = 0.0f;
  float bias = 0.0f;
  for (uint part = 0; part < params.parts; part++) {
    const device float* from = sums + size_t(part) * 2 * params.axis + at;
    weight += from[0];
    bias += from[params.axis];
  }
  of_weight[at] = T(weight);
  of_bias[at] = T(bias);
}

#define NORM_GRAD_KERNELS(DTYPE, T)                                                        \
  MLXP_KERNEL("mlxp_norm_grad_rms_row2_" DTYPE, norm_grad_row<T, false, NORM_GRAD_QUADS>)  \
  MLXP_KERNEL("mlxp_norm_grad_rms_looped_" DTYPE, norm_grad_row<T, false, 0>)              \
  MLXP_KERNEL("mlxp_norm_grad_layer_row2_" DTYPE, norm_grad_row<T, true, NORM_GRAD_QUADS>) \
  MLXP_KERNEL("mlxp_norm_grad_layer_looped_" DTYPE, norm_grad_row<T, true, 0>)             \
  MLXP_KERNEL("mlxp_norm_grad_part_" DTYPE, norm_grad_part<T>)                             \
  MLXP_KERNEL("mlxp_norm_grad_sum_" DTYPE, norm_grad_sum<T>)

MLXP_EACH_DTYPE(NORM_GRAD_KERNELS)
