#include "norm_grad.h"
#include "rows.h"

// Let n = (x - m) * r, where m is the mean, or 0 for RMS normalization, and r is the reciprocal
// root mean square of x - m. The gradient of x is r * (h - mean(h) - n * mean(h * n)) with h = g *
// weight. RMS normalization omits mean(h). The gradient of the weight is the sum of g * n over the
// rows. The gradient of the bias is the sum of g over the rows.

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

/** The buffers, at the beginning of a row. */
template <typename T>
struct NormGradRow {
  const device T* x;
  const device T* weight;
  const device T* g;
  const device T* added;
  device T* out;
};

/** A row's mean, or 0, and its reciprocal root mean square. */
struct NormGradStats {
  float mean;
  float inverse;
};

/**
 * The gradient of x in a row. A thread keeps all quads that it reads of a row, at most KEPT; if
 * KEPT is 0, it reads them again in each loop over the row. With SUMS it also adds its elements'
 * terms to the gradients of the weight and of the bias.
 */
template <typename T, bool CENTERED, uint KEPT, bool SUMS>
METAL_FUNC NormGradStats write_row(
    const thread NormGradRow<T>& buffers,
    const thread GroupRow<true>& row,
    constant NormGradParams& params,
    thread float* of_weight,
    thread float* of_bias) {
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
      load_floats(own, buffers.x, row.at(q), params.axis);
      for (uint i = 0; i < READS; i++) {
        sum += own[i];
      }
    }
    mean = row.sum(sum, 2) * share;
  }
  float squares = 0.0f;
  float height = 0.0f;
  float along = 0.0f;
  for (uint q = 0; q < quads; q++) {
    const uint at = row.at(q);
    thread float* own = values[q % ROOM];
    thread float* scaled = heights[q % ROOM];
    if (!CENTERED || KEPT == 0) {
      load_floats(own, buffers.x, at, params.axis);
    }
    load_scaled(scaled, buffers.g, buffers.weight, at, params);
    for (uint i = 0; i < READS; i++) {
      const float d = at + i < params.axis ? own[i] - mean : 0.0f;
      squares += d * d;
      height += scaled[i];
      along += d * scaled[i];
    }
  }
  squares = row.sum(squares, 0) * share;
  along = row.sum(along, 1) * share;
  height = CENTERED ? row.sum(height, 3) * share : 0.0f;
  const float inverse = precise::rsqrt(squares + params.eps);
  const float slope = along * inverse;
  for (uint q = 0; q < quads; q++) {
    const uint at = row.at(q);
    thread float* own = values[q % ROOM];
    thread float* scaled = heights[q % ROOM];
    if (KEPT == 0) {
      load_floats(own, buffers.x, at, params.axis);
      load_scaled(scaled, buffers.g, buffers.weight, at, params);
    }
    for (uint i = 0; i < READS; i++) {
      const float n = (own[i] - mean) * inverse;
      own[i] = n;
      scaled[i] = (scaled[i] - height - n * slope) * inverse;
    }
    if (SUMS) {
      float gradients[READS];
      load_floats(gradients, buffers.g, at, params.axis);
      for (uint i = 0; i < READS; i++) {
        of_weight[q * READS + i] += gradients[i] * own[i];
        of_bias[q * READS + i] += gradients[i];
      }
    }
    if (params.added != 0) {
      load_floats(own, buffers.added, at, params.axis);
      for (uint i = 0; i < READS; i++) {
        scaled[i] += own[i];
      }
    }
    store4(buffers.out, at, params.axis, rounded<T>(scaled));
  }
  return {mean, inverse};
}

/** The buffers, moved to the first row of a threadgroup. */
template <typename T>
METAL_FUNC NormGradRow<T> first_row(NormGradRow<T> buffers, uint row, uint axis) {
  const size_t start = size_t(row) * axis;
  return {
      buffers.x + start,
      buffers.weight,
      buffers.g + start,
      buffers.added + start,
      buffers.out + start};
}

/** The gradient of x, and each row's stats. Each threadgroup computes a row. */
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
  const auto buffers = first_row<T>({x, weight, g, added, out}, group, params.axis);
  const auto of_row = write_row<T, CENTERED, KEPT, false>(buffers, row, params, nullptr, nullptr);
  if (thread_index == 0) {
    stats[2 * group] = of_row.mean;
    stats[2 * group + 1] = of_row.inverse;
  }
}

/** The gradient of x in the rows that a threadgroup computes, and the sums over these rows for the
 * gradients of the weight and of the bias. */
template <typename T, bool CENTERED>
[[kernel]] void norm_grad_rows(
    const device T* x [[buffer(0)]],
    const device T* weight [[buffer(1)]],
    const device T* g [[buffer(2)]],
    const device T* added [[buffer(3)]],
    device T* out [[buffer(4)]],
    device float* sums [[buffer(5)]],
    constant NormGradParams& params [[buffer(6)]],
    MLXP_GROUP_ROW) {
  const GroupRow<true> row = {{thread_index, threads, lane, simd, simds}, scratch};
  float of_weight[NORM_GRAD_QUADS * READS];
  float of_bias[NORM_GRAD_QUADS * READS];
  for (uint i = 0; i < NORM_GRAD_QUADS * READS; i++) {
    of_weight[i] = 0.0f;
    of_bias[i] = 0.0f;
  }
  const uint first = group * params.part_rows;
  auto buffers = first_row<T>({x, weight, g, added, out}, first, params.axis);
  const uint count = min(params.part_rows, params.rows - first);
  for (uint i = 0; i < count; i++) {
    write_row<T, CENTERED, NORM_GRAD_QUADS, true>(buffers, row, params, of_weight, of_bias);
    buffers = first_row(buffers, 1, params.axis);
  }
  device float* to = sums + size_t(group) * params.vectors * params.axis;
  for (uint q = 0; q < NORM_GRAD_QUADS; q++) {
    for (uint i = 0; i < READS; i++) {
      const uint at = row.at(q) + i;
      if (at < params.axis) {
        to[at] = of_weight[q * READS + i];
        if (CENTERED && params.vectors > 1) {
          to[params.axis + at] = of_bias[q * READS + i];
        }
      }
    }
  }
}

/** Sums over some rows, for the weight, then for the bias. A thread has a quad of columns. */
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
  device float* to = sums + size_t(place.y) * params.vectors * params.axis;
  for (uint i = 0; i < READS; i++) {
    if (at + i < params.axis) {
      to[at + i] = of_weight[i];
      if (params.vectors > 1) {
        to[params.axis + at + i] = of_bias[i];
      }
    }
  }
}

/** Adds up the parts. A thread has one column of the weight and of the bias. */
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
    const device float* from = sums + size_t(part) * params.vectors * params.axis + at;
    weight += from[0];
    if (params.vectors > 1) {
      bias += from[params.axis];
    }
  }
  of_weight[at] = T(weight);
  of_bias[at] = T(bias);
}

#define NORM_GRAD_KERNELS(DTYPE, T)                                                        \
  MLXP_KERNEL("mlxp_norm_grad_rms_row2_" DTYPE, norm_grad_row<T, false, NORM_GRAD_QUADS>)  \
  MLXP_KERNEL("mlxp_norm_grad_rms_looped_" DTYPE, norm_grad_row<T, false, 0>)              \
  MLXP_KERNEL("mlxp_norm_grad_layer_row2_" DTYPE, norm_grad_row<T, true, NORM_GRAD_QUADS>) \
  MLXP_KERNEL("mlxp_norm_grad_layer_looped_" DTYPE, norm_grad_row<T, true, 0>)             \
  MLXP_KERNEL("mlxp_norm_grad_rms_rows_" DTYPE, norm_grad_rows<T, false>)                  \
  MLXP_KERNEL("mlxp_norm_grad_layer_rows_" DTYPE, norm_grad_rows<T, true>)                 \
  MLXP_KERNEL("mlxp_norm_grad_part_" DTYPE, norm_grad_part<T>)                             \
  MLXP_KERNEL("mlxp_norm_grad_sum_" DTYPE, norm_grad_sum<T>)

MLXP_EACH_DTYPE(NORM_GRAD_KERNELS)
