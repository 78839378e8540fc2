// A kernel with four faults, of which the macro PLANTED selects one, or none if it is 0. Each fault
// raises a cost of the kernel, and tests/agx/test_agx.py checks that the comparison reports it.
#include <metal_stdlib>
using namespace metal;

kernel void planted_float32(
    const device float* x [[buffer(0)]],
    device float* y [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    uint i [[thread_position_in_grid]]) {
#if PLANTED == 1 // an array that is indexed by a variable
  float kept[32];
  for (uint k = 0; k < 32; k++) {
    kept[k] = x[32 * i + k];
  }
  for (uint k = 0; k < n; k++) {
    y[k] += kept[(k * i) % 32];
  }
#elif PLANTED == 2 || PLANTED == 3 // fewer threads fit, or registers spill
  constexpr uint COUNT = PLANTED == 2 ? 80 : 200;
  float kept[COUNT];
  for (uint k = 0; k < COUNT; k++) {
    kept[k] = x[k];
  }
  for (uint t = 0; t < n; t++) {
    const float by = x[t];
    for (uint k = 0; k < COUNT; k++) {
      kept[k] = fma(kept[k], by, kept[(k + 1) % COUNT]);
    }
  }
  for (uint k = 0; k < COUNT; k++) {
    y[k] = kept[k];
  }
#else
  float sum = 0.0f;
  for (uint k = 0; k < n; k++) {
#if PLANTED == 4 // an additional conversion
    sum = fma(x[k], float(k), sum);
#else
    sum = fma(x[k], x[k], sum);
#endif
  }
  y[i] = sum;
#endif
}
