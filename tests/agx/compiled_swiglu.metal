// The kernel that MLX's graph compiler generates for mlx-lm's silu(gate) * up, in the variant for
// rows without gaps. Each thread computes several elements, and each operation is rounded to the
// element's type. MLX compiles it at run time, so no library of MLX contains it.
#include <metal_stdlib>
using namespace metal;

template <typename T>
T sigmoid(T x) {
  const T y = T(1) / (T(1) + T(precise::exp(T(fabs(float(x))))));
  return x < T(0) ? y : T(1) - y;
}

template <typename T, int N>
[[kernel]] void compiled_swiglu(
    const device T* gate [[buffer(0)]],
    const device T* up [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant uint& size [[buffer(3)]],
    uint position [[thread_position_in_grid]]) {
  uint index = N * position;
  for (int i = 0; i < N && index < size; i++) {
    const T x = gate[index];
    out[index] = T(T(x * sigmoid(x)) * up[index]);
    index++;
  }
}

#define COMPILED_SWIGLU(DTYPE, T)                             \
  template [[host_name("compiled_swiglu_" DTYPE)]] [[kernel]] \
  decltype(compiled_swiglu<T, 8 / sizeof(T)>) compiled_swiglu<T, 8 / sizeof(T)>;

COMPILED_SWIGLU("float32", float)
COMPILED_SWIGLU("float16", half)
COMPILED_SWIGLU("bfloat16", bfloat)
