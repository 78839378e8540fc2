// Functions that compiled kernels call. runtime/runtime.cpp implements them by calls of the
// executor, the host code that runs kernels.
#pragma once

#ifndef MSL_GPU
// convergent: the compiler must not move a call into or out of a branch that only some threads
// take. nomerge: it must not merge two calls.
#define MSL_EXECUTOR extern "C" __attribute__((nothrow, convergent, nomerge))

MSL_EXECUTOR void msl_threadgroup_barrier(uint flags);
MSL_EXECUTOR void msl_simdgroup_barrier(uint flags);
MSL_EXECUTOR void msl_fence(uint flags, uint order, uint scope);
/**
 * Publishes the calling lane's value to its SIMD group. Returns the values of the lanes in 32 slots
 * of 32 bytes, and writes a mask of the active lanes to `active`.
 */
MSL_EXECUTOR const uchar* msl_simd_exchange(const void* value, uint size, uint* active);
MSL_EXECUTOR uint msl_lane();
MSL_EXECUTOR void msl_inactive_lane(uint lane);
/** Reports an atomic access: bit 0 of `kind` for a read, bit 1 for a write. */
MSL_EXECUTOR void msl_atomic(const void* object, uint size, uint kind);
MSL_EXECUTOR void msl_copy(void* to, const void* from, ulong size); // not watched
MSL_EXECUTOR void* msl_threadgroup_variable(const void* key, ulong size, const char* name);
#endif

namespace metal {

enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16,
};
constexpr METAL_FUNC mem_flags operator|(mem_flags a, mem_flags b) {
  return mem_flags(uint(a) | uint(b));
}
constexpr METAL_FUNC mem_flags operator&(mem_flags a, mem_flags b) {
  return mem_flags(uint(a) & uint(b));
}

METAL_FUNC void threadgroup_barrier(mem_flags flags) {
  msl_threadgroup_barrier(uint(flags));
}
METAL_FUNC void simdgroup_barrier(mem_flags flags) {
  msl_simdgroup_barrier(uint(flags));
}

} // namespace metal
