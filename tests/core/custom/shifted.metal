#include <metal_stdlib>
using namespace metal;

constant bool negate [[function_constant(0)]];
constant float offset [[function_constant(1)]];

[[kernel]] void shifted(
    const device float* x [[buffer(0)]],
    device float* y [[buffer(1)]],
    threadgroup float* scratch [[threadgroup(0)]],
    uint i [[thread_position_in_grid]],
    uint lane [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]) {
  scratch[lane] = negate ? -x[i] : x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = scratch[threads - 1 - lane] + offset;
}
