// The GPU functions that kernels need if MSL_GPU is defined, which selects compilation for a GPU.
// They have the mangled names of OpenCL builtins, which clang's SPIR-V back end recognizes.
#pragma once

#define MSL_CONVERGENT __attribute__((nothrow, convergent))
#define MSL_PURE __attribute__((nothrow, const))

MSL_CONVERGENT void msl_group_barrier(uint) __asm("_Z18work_group_barrierj");
MSL_PURE ulong msl_global_id(uint) __asm("_Z13get_global_idj");
MSL_PURE ulong msl_group_id(uint) __asm("_Z12get_group_idj");
MSL_PURE ulong msl_local_id(uint) __asm("_Z12get_local_idj");
MSL_PURE ulong msl_local_size(uint) __asm("_Z14get_local_sizej");
MSL_PURE ulong msl_global_size(uint) __asm("_Z15get_global_sizej");
MSL_PURE ulong msl_num_groups(uint) __asm("_Z14get_num_groupsj");
MSL_PURE ulong msl_linear_id() __asm("_Z19get_local_linear_idv");
MSL_PURE uint msl_lane() __asm("_Z22get_sub_group_local_idv");
MSL_PURE uint msl_simd() __asm("_Z16get_sub_group_idv");
MSL_PURE uint msl_simds() __asm("_Z18get_num_sub_groupsv");

METAL_FUNC void msl_threadgroup_barrier(uint flags) {
  msl_group_barrier((flags & 1) != 0 ? 3 : 1); // OpenCL's bits: 1 local, 2 global
}
METAL_FUNC void msl_simdgroup_barrier(uint) {} // the lanes of a SIMD group run in lockstep

#define MSL_LANES(T, M)                                                       \
  MSL_CONVERGENT T msl_sum(T) __asm("_Z20sub_group_reduce_add" M);            \
  MSL_CONVERGENT T msl_max(T) __asm("_Z20sub_group_reduce_max" M);            \
  MSL_CONVERGENT T msl_min(T) __asm("_Z20sub_group_reduce_min" M);            \
  MSL_CONVERGENT T msl_first(T) __asm("_Z25sub_group_broadcast_first" M);     \
  MSL_CONVERGENT T msl_from(T, uint) __asm("_Z19sub_group_broadcast" M "j");  \
  MSL_CONVERGENT T msl_shuffled(T, uint) __asm("_Z17sub_group_shuffle" M "j");
MSL_LANES(float, "f")
MSL_LANES(half, "Dh")
MSL_LANES(int, "i")
MSL_LANES(uint, "j")
MSL_CONVERGENT int msl_any(int) __asm("_Z13sub_group_anyi");
MSL_CONVERGENT int msl_all(int) __asm("_Z13sub_group_alli");
#undef MSL_LANES

// Approximate math functions. Each compiles to about as many instructions as Apple's function. The
// last bits of results may be wrong.
namespace msl_gpu {
MSL_PURE float exp2(float) __asm("_Z11native_exp2f");
MSL_PURE float log2(float) __asm("_Z11native_log2f");
MSL_PURE float rsqrt(float) __asm("_Z12native_rsqrtf");
MSL_PURE float sqrt(float) __asm("_Z11native_sqrtf");
MSL_PURE float sin(float) __asm("_Z10native_sinf");
MSL_PURE float cos(float) __asm("_Z10native_cosf");
METAL_FUNC float exp(float x) {
  return exp2(x * M_LOG2E_F);
}
METAL_FUNC float log(float x) {
  return log2(x) * M_LN2_F;
}
METAL_FUNC float tanh(float x) {
  const float e = exp(2.0f * x);
  return 1.0f - 2.0f / (e + 1.0f);
}
METAL_FUNC float pow(float x, float y) {
  return exp2(log2(x) * y);
}
} // namespace msl_gpu
#define __builtin_exp2f msl_gpu::exp2
#define __builtin_log2f msl_gpu::log2
#define __builtin_sqrtf msl_gpu::sqrt
#define __builtin_sinf msl_gpu::sin
#define __builtin_cosf msl_gpu::cos
#define __builtin_expf msl_gpu::exp
#define __builtin_logf msl_gpu::log
#define __builtin_tanhf msl_gpu::tanh
#define __builtin_powf msl_gpu::pow
