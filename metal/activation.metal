#include "activation_functions.h"

/** A threadgroup's part of flat arrays, a quad for each thread. */
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

/** Quads of columns along x, rows along y. */
template <typename T>
[[kernel]] void activation_affine(
    const device T* x [[buffer(0)]],
    const device T* scale [[buffer(1)]],
    const device T* shift [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant AffineParams& params [[buffer(4)]],
    uint2 place [[thread_position_in_grid]]) {
  const uint at = place.x * READS;
  if (at >= params.columns || place.y >= params.rows) {
    return;
  }
  const size_t row = size_t(place.y) * params.columns;
  packed4<T> values = load4(x + row, at, params.columns, T(0.0f));
  // One number stands for all columns: past its end it is its own padding.
  const packed4<T> scales =
      load4(scale, params.scale_columns > 1 ? at : 0, params.scale_columns, scale[0]);
  const packed4<T> shifts =
      load4(shift, params.shift_columns > 1 ? at : 0, params.shift_columns, shift[0]);
  for (uint i = 0; i < READS; i++) {
    values[i] = T(float(T(float(values[i]) * float(scales[i]))) + float(shifts[i]));
  }
  store4(out + row, at, params.columns, values);
}

#define ACTIVATION_KERNELS(DTYPE, T)                                                            \
  MLXP_KERNEL("mlxp_activation_relu_" DTYPE, activation_of_one<T, ACTIVATION_RELU>)             \
  MLXP_KERNEL("mlxp_activation_gelu_" DTYPE, activation_of_one<T, ACTIVATION_GELU>)             \
  MLXP_KERNEL("mlxp_activation_gelu_tanh_" DTYPE, activation_of_one<T, ACTIVATION_GELU_TANH>)   \
  MLXP_KERNEL("mlxp_activation_silu_" DTYPE, activation_of_one<T, ACTIVATION_SILU>)             \
  MLXP_KERNEL("mlxp_activation_swiglu_" DTYPE, activation_of_two<T, ACTIVATION_SWIGLU>)         \
  MLXP_KERNEL("mlxp_activation_geglu_" DTYPE, activation_of_two<T, ACTIVATION_GEGLU>)           \
  MLXP_KERNEL("mlxp_activation_geglu_tanh_" DTYPE, activation_of_two<T, ACTIVATION_GEGLU_TANH>) \
  MLXP_KERNEL("mlxp_activation_add_relu_" DTYPE, activation_of_two<T, ACTIVATION_ADD_RELU>)     \
  MLXP_KERNEL("mlxp_activation_mul_relu_" DTYPE, activation_of_two<T, ACTIVATION_MUL_RELU>)     \
  MLXP_KERNEL("mlxp_activation_affine_" DTYPE, activation_affine<T>)

MLXP_EACH_DTYPE(ACTIVATION_KERNELS)
