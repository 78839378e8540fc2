#include "take_grad.h"

#include "rows.h"

/**
 * Sorts the copies (the rows that `take` returned) by the matrix row that they copy, then by
 * position. Each SIMD group has a copy, and counts the copies that come before it.
 */
template <typename ID>
[[kernel]] void take_grad_order(
    const device ID* ids [[buffer(0)]],
    device ID* sorted [[buffer(1)]],
    device uint* places [[buffer(2)]],
    constant TakeGradOrderParams& params [[buffer(3)]],
    MLXP_SIMD_ROW) {
  const uint place = group * simds + simd;
  if (place >= params.count) {
    return;
  }
  const ID id = ids[place];
  uint before = 0;
  for (uint at = lane; at < params.count; at += SIMD_WIDTH) {
    const ID other = ids[at];
    before += other < id || (other == id && at < place) ? 1 : 0;
  }
  before = simd_sum(before);
  if (lane == 0) {
    sorted[before] = id;
    places[before] = place;
  }
}

/** Adds up the gradients of each row's copies in order. A thread has a quad of columns. */
template <typename T>
[[kernel]] void take_grad_sum(
    const device T* g [[buffer(0)]],
    const device uint* sorted [[buffer(1)]],
    const device uint* places [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant TakeGradParams& params [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint2 threads [[threads_per_threadgroup]]) {
  const uint at = (group.y * threads.x + thread_index) * READS;
  if (at >= params.axis) {
    return;
  }
  const uint first = group.x * TAKE_GRAD_ROWS;
  uint copy = 0; // the first of these rows or of later ones
  for (uint half = params.half; half != 0; half /= 2) {
    if (copy + half <= params.count && sorted[copy + half - 1] < first) {
      copy += half;
    }
  }
  const uint end = min(first + TAKE_GRAD_ROWS, params.rows);
  for (uint row = first; row < end; row++) {
    float sums[READS];
    for (uint i = 0; i < READS; i++) {
      sums[i] = 0.0f;
    }
    for (; copy < params.count && sorted[copy] == row; copy++) {
      const device T* from = g + size_t(places[copy]) * params.axis;
      const packed4<T> gradients = load4(from, at, params.axis, T(0.0f));
      for (uint i = 0; i < READS; i++) {
        sums[i] += float(gradients[i]);
      }
    }
    store4(out + size_t(row) * params.axis, at, params.axis, rounded<T>(sums));
  }
}

#define TAKE_GRAD_SUM(DTYPE, T) MLXP_KERNEL("mlxp_take_grad_sum_" DTYPE, take_grad_sum<T>)

MLXP_KERNEL("mlxp_take_grad_order_uint32", take_grad_order<uint>)
MLXP_EACH_DTYPE(TAKE_GRAD_SUM)
