#include <metal_stdlib>

using namespace metal;

/** Must match the struct in src/soft_cap.rs. */
struct SoftCapParams {
  uint count;
  float cap;
};

/** y = cap * tanh(x / cap), with a thread for each element. */
template <typename T>
[[kernel]] void soft_cap(
    const device T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant SoftCapParams& params [[buffer(2)]],
    uint i [[thread_position_in_grid]]) {
  if (i < params.count) {
    y[i] = T(params.cap * precise::tanh(float(x[i]) / params.cap));
  }
}

/** y = mean(x^2) of each row, with a SIMD group for each; adds in float32. */
template <typename T>
[[kernel]] void mean_square(
    const device T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant uint& axis [[buffer(2)]],
    uint row [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  x += size_t(row) * axis;
  float sum = 0.0f;
  for (uint i = lane; i < axis; i += 32) {
    const float value = float(x[i]);
    sum += value * value;
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    y[row] = T(sum / float(axis));
  }
}

#define OWN_KERNELS(NAME, T)                                                             \
  template [[host_name("soft_cap_" NAME)]] [[kernel]] decltype(soft_cap<T>) soft_cap<T>; \
  template [[host_name("mean_square_" NAME)]] [[kernel]] decltype(mean_square<T>) mean_square<T>;

OWN_KERNELS("float32", float)
OWN_KERNELS("float16", half)
OWN_KERNELS("bfloat16", bfloat)
