#include "activation_functions.h"

/** The part of flat arrays that a threadgroup computes: READS elements (a quad) for each thread. */
struct Span {
  size_t start;
  uint at;
  uint end;

  Span(constant ActivationParams& params, uint group, uint index, uint threads)
      : start(size_t(group) * threads * READS),
        at(index * READS),
        end(uint(min(size_t(threads) * READS, size_t(params.size) - start))) {}
};

template <typename T, ActivationKind KIND>
[[kernel]] void activation_of_one(
    const device T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant ActivationParams& params [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]) {
  const Span span(params, group, index, threads);
  if (span.at >= span.end) {
    return;
  }
  packed4<T> values = load4(x + span.start, span.at, span.end, T(0.0f));
  for (uint i = 0; i < READS; i++) {
    values[i] = activated<T>(KIND, values[i]);
  }
  store4(out + span.start, span.at, span.end, values);
}

template <typename T, ActivationKind KIND>
[[kernel]] void activation_of_two(
    const device T* a [[buffer(0)]],
    const device T* b [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant ActivationParams& params [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]) {
  const Span span(params, group, index, threads);
  if (span.at >= span.end) {
    return;
  }
  packed4<T> values = load4(a + span.start, span.at, span.end, T(0.0f));
  const packed4<T> others = load4(b + span.start, span.at, span.end, T(0.0f));
  for (uint i = 0; i < READS; i++) {
    values[i] = combined<T, KIND>(values[i], others[i]);
  }
  store4(out + span.start, span.at, span.end, values);
}

template <typename T, ActivationKind KIND>
[[kernel]] void activation_gradients(
    const device T* a [[buffer(0)]],
    const device T* b [[buffer(1)]],
    const device T* g [[buffer(2)]],
    device T* of_a [[buffer(3)]],
    device T* of_b [[buffer(4)]],
    constant ActivationParams& params [[buffer(5)]],
    uint group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]) {
  const Span span(params, group, index, threads);
  if (span.at >= span.end) {
    return;
  }
  packed4<T> firsts = load4(a + span.start, span.at, span.end, T(0.0f));
  packed4<T> seconds = load4(b + span.start, span.at, span.end, T(0.0f));
  const packed4<T> gradients = load4(g + span.start, span.at, span.end, T(0.0f));
  for (uint i = 0; i < READS; i++) {
    T of_first;
    T of_second;
    combined_gradients<T, KIND>(firsts[i], seconds[i], float(gradients[i]), of_first, of_second);
    firsts[i] = of_first;
    seconds[i] = of_second;
  }
  store4(of_a + span.start, span.at, span.end, firsts);
  store4(of_b + span.start, span.at, span.end, seconds);
}

/** Four factors from column `at` on; a single number serves all columns. */
template <typename T>
METAL_FUNC packed4<T> factors(const device T* of, uint columns, uint at) {
  if (columns > 1) {
    return load4(of, at, columns, T(0.0f));
  }
  packed4<T> quad;
  const T all = of[0];
  for (uint i = 0; i < READS; i++) {
    quad[i] = all;
  }
  return quad;
}

/** Each thread computes a quad of columns (grid x) in AFFINE_ROWS rows (grid y), and reads scale
 * and shift once for these rows. */
template <typename T>
[[kernel]] void activation_affine(
    const device T* x [[buffer(0)]],
    const device T* scale [[buffer(1)]],
    const device T* shift [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant AffineParams& params [[buffer(4)]],
    uint2 place [[thread_position_in_grid]]) {
  const uint at = place.x * READS;
  const uint first = place.y * AFFINE_ROWS;
  if (at >= params.columns || first >= params.rows) {
    return;
  }
  const packed4<T> scales = factors(scale, params.scale_columns, at);
  const packed4<T> shifts = factors(shift, params.shift_columns, at);
  for (uint row = first; row < min(first + AFFINE_ROWS, params.rows); row++) {
    const size_t start = size_t(row) * params.columns;
    packed4<T> values = load4(x + start, at, params.columns, T(0.0f));
    for (uint i = 0; i < READS; i++) {
      values[i] = T(float(T(float(values[i]) * float(scales[i]))) + float(shifts[i]));
    }
    store4(out + start, at, params.columns, values);
  }
}

#define ACTIVATION_OF_ONE(NAME, DTYPE, ...) \
  MLXP_KERNEL("mlxp_activation_" NAME "_" DTYPE, activation_of_one<__VA_ARGS__>)
#define ACTIVATION_OF_TWO(NAME, DTYPE, ...) \
  MLXP_KERNEL("mlxp_activation_" NAME "_" DTYPE, activation_of_two<__VA_ARGS__>)
#define ACTIVATION_GRADIENTS(NAME, DTYPE, ...) \
  MLXP_KERNEL("mlxp_activation_" NAME "_grad_" DTYPE, activation_gradients<__VA_ARGS__>)

#define ACTIVATION_KERNELS(DTYPE, T)                                         \
  ACTIVATION_OF_ONE("relu", DTYPE, T, ACTIVATION_RELU)                       \
  ACTIVATION_OF_ONE("gelu", DTYPE, T, ACTIVATION_GELU)                       \
  ACTIVATION_OF_ONE("gelu_tanh", DTYPE, T, ACTIVATION_GELU_TANH)             \
  ACTIVATION_OF_ONE("silu", DTYPE, T, ACTIVATION_SILU)                       \
  ACTIVATION_OF_TWO("swiglu", DTYPE, T, ACTIVATION_SWIGLU)                   \
  ACTIVATION_OF_TWO("geglu", DTYPE, T, ACTIVATION_GEGLU)                     \
  ACTIVATION_OF_TWO("geglu_tanh", DTYPE, T, ACTIVATION_GEGLU_TANH)           \
  ACTIVATION_OF_TWO("add_relu", DTYPE, T, ACTIVATION_ADD_RELU)               \
  ACTIVATION_OF_TWO("mul_relu", DTYPE, T, ACTIVATION_MUL_RELU)               \
  ACTIVATION_OF_TWO("relu_slope", DTYPE, T, ACTIVATION_RELU_SLOPE)           \
  ACTIVATION_OF_TWO("gelu_slope", DTYPE, T, ACTIVATION_GELU_SLOPE)           \
  ACTIVATION_OF_TWO("gelu_tanh_slope", DTYPE, T, ACTIVATION_GELU_TANH_SLOPE) \
  ACTIVATION_OF_TWO("silu_slope", DTYPE, T, ACTIVATION_SILU_SLOPE)           \
  ACTIVATION_GRADIENTS("swiglu", DTYPE, T, ACTIVATION_SWIGLU)                \
  ACTIVATION_GRADIENTS("geglu", DTYPE, T, ACTIVATION_GEGLU)                  \
  ACTIVATION_GRADIENTS("geglu_tanh", DTYPE, T, ACTIVATION_GEGLU_TANH)        \
  ACTIVATION_GRADIENTS("add_relu", DTYPE, T, ACTIVATION_ADD_RELU)            \
  ACTIVATION_GRADIENTS("mul_relu", DTYPE, T, ACTIVATION_MUL_RELU)            \
  MLXP_KERNEL("mlxp_activation_affine_" DTYPE, activation_affine<T>)

MLXP_EACH_DTYPE(ACTIVATION_KERNELS)
