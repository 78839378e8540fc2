// Variants of the layer_norm kernel for long rows. The benchmark `kernels` compares their times
// with the kernels of metal/layer_norm.metal.
#include "layer_norm.metal"

/** Loads READS elements. If WHOLE, their address and the row's size are multiples of 16 bytes. */
template <typename T, bool WHOLE>
METAL_FUNC packed4<T> load_form(const device T* row, uint at, uint axis) {
  if (!WHOLE) {
    return load4(row, at, axis, T(0.0f));
  }
  packed4<T> quad;
  uint4 words = uint4(0u);
  if (at < axis) {
    words = *(const device uint4*)(row + at);
  }
  for (uint i = 0; i < READS / 2; i++) {
    quad.words[i] = words[i];
  }
  return quad;
}

template <typename T, bool WHOLE>
METAL_FUNC void store_form(device T* row, uint at, uint axis, packed4<T> quad) {
  if (!WHOLE) {
    store4(row, at, axis, quad);
  } else if (at < axis) {
    *(device uint4*)(row + at) = uint4(quad.words[0], quad.words[1], quad.words[2], quad.words[3]);
  }
}

/**
 * Like layer_norm_row, but with only one barrier. Each SIMD group sums the squared deviations of
 * its elements from their mean. Then it merges the sums of all SIMD groups with the formula for
 * merging variances. The row has a weight and a bias.
 */
template <typename T, uint QUADS, bool WHOLE>
[[kernel]] void layer_norm_once(
    const device T* x [[buffer(0)]],
    const device T* weight [[buffer(1)]],
    const device T* bias [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant LayerNormParams& params [[buffer(4)]],
    MLXP_GROUP_ROW) {
  x += size_t(group) * params.axis;
  out += size_t(group) * params.axis;
  const Affine<T> affine = {weight, bias, params.weighted, params.biased};
  packed4<T> values[QUADS];
  float sum = 0.0f;
  uint count = 0; // the number of the SIMD group's elements
  for (uint q = 0; q < QUADS; q++) {
    const uint at = (q * threads + thread_index) * READS;
    values[q] = load_form<T, WHOLE>(x, at, params.axis);
    sum = add_values<T>(sum, values[q]);
    const uint first = (q * threads + simd * SIMD_WIDTH) * READS;
    count += first < params.axis ? min(params.axis - first, uint(SIMD_ROW)) : 0;
  }
  sum = simd_sum(sum);
  const float own = count > 0 ? sum / float(count) : 0.0f;
  float squares = 0.0f;
  for (uint q = 0; q < QUADS; q++) {
    const uint at = (q * threads + thread_index) * READS;
    squares = add_deviations<T>(squares, values[q], own, at, params.axis);
  }
  squares = simd_sum(squares);
  if (lane == 0) {
    scratch[simd] = sum;
    scratch[simds + simd] = squares;
    scratch[2 * simds + simd] = float(count);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float part = 0.0f;
  float of_squares = 0.0f;
  float of_count = 0.0f;
  if (lane < simds) {
    part = scratch[lane];
    of_squares = scratch[simds + lane];
    of_count = scratch[2 * simds + lane];
  }
  const float mean = simd_sum(part) / float(params.axis);
  const float apart = of_count > 0.0f ? part / of_count - mean : 0.0f;
  const float total = simd_sum(of_squares + of_count * apart * apart);
  const float inverse = inverse_root(total, params.axis, params.eps);
  for (uint q = 0; q < QUADS; q++) {
    const uint at = (q * threads + thread_index) * READS;
    keep_packed<T>(values[q]);
    const packed4<T> weights = load_form<T, WHOLE>(weight, at, params.axis);
    const packed4<T> biases = load_form<T, WHOLE>(bias, at, params.axis);
    store_form<T, WHOLE>(
        out,
        at,
        params.axis,
        normalized<T, true>(values[q], mean, inverse, weights, biases, affine));
  }
}

/**
 * Like layer_norm_once, but one SIMD group handles each row, so there is no barrier, and each
 * thread holds QUADS * 8 elements.
 */
template <typename T, uint QUADS>
[[kernel]] void layer_norm_alone(
    const device T* x [[buffer(0)]],
    const device T* weight [[buffer(1)]],
    const device T* bias [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant LayerNormParams& params [[buffer(4)]],
    MLXP_SIMD_ROW) {
  const size_t row = size_t(group) * simds + simd;
  if (row >= params.rows) {
    return;
  }
  x += row * params.axis;
  out += row * params.axis;
  const Affine<T> affine = {weight, bias, params.weighted, params.biased};
  normalize<T, true>(Plain<T>{x}, affine, out, params, SimdRow{lane}, Quads<QUADS>());
}

#define CANDIDATES(DTYPE, T)                                                \
  MLXP_KERNEL("mlxp_layer_norm_row8_" DTYPE, layer_norm_row<T, 8>)          \
  MLXP_KERNEL("mlxp_layer_norm_once2_" DTYPE, layer_norm_once<T, 2, false>) \
  MLXP_KERNEL("mlxp_layer_norm_once4_" DTYPE, layer_norm_once<T, 4, false>) \
  MLXP_KERNEL("mlxp_layer_norm_once8_" DTYPE, layer_norm_once<T, 8, false>) \
  MLXP_KERNEL("mlxp_layer_norm_whole2_" DTYPE, layer_norm_once<T, 2, true>) \
  MLXP_KERNEL("mlxp_layer_norm_whole4_" DTYPE, layer_norm_once<T, 4, true>) \
  MLXP_KERNEL("mlxp_layer_norm_whole8_" DTYPE, layer_norm_once<T, 8, true>) \
  MLXP_KERNEL("mlxp_layer_norm_alone4_" DTYPE, layer_norm_alone<T, 4>)      \
  MLXP_KERNEL("mlxp_layer_norm_alone8_" DTYPE, layer_norm_alone<T, 8>)      \
  MLXP_KERNEL("mlxp_layer_norm_alone16_" DTYPE, layer_norm_alone<T, 16>)

CANDIDATES("float16", half)
CANDIDATES("bfloat16", bfloat)
