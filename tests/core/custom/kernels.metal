#include <metal_stdlib>
using namespace metal;

struct SoftCapParams {
  uint count;
  float cap;
};

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

/** One SIMD group for each row. */
template <typename T>
[[kernel]] void mean_square(
    const device T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant uint& axis [[buffer(2)]],
    uint row [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  float sum = 0.0f;
  for (uint i = lane; i < axis; i += 32) {
    const float value = float(x[size_t(row) * axis + i]);
    sum += value * value;
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    y[row] = T(sum / float(axis));
  }
}

#define KERNELS(DTYPE, T)                                                                 \
  template [[host_name("soft_cap_" DTYPE)]] [[kernel]] decltype(soft_cap<T>) soft_cap<T>; \
  template [[host_name("mean_square_" DTYPE)]] [[kernel]] decltype(mean_square<T>) mean_square<T>;

KERNELS("float32", float)
KERNELS("float16", half)
KERNELS("bfloat16", bfloat)
