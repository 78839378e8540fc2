// This file is linked into every kernel library. It forwards the calls of instrumented kernels to
// the host. The __asan callbacks have the names that -fsanitize=kernel-address calls if every check
// is a function call.
typedef unsigned int uint;
typedef unsigned long ulong;

struct Table {
  /**
   * kind is a sum of 1 for a read, 2 for a write, 4 if the compiler assumes natural alignment, and
   * 8 for an atomic access.
   */
  void (*access)(const void* at, ulong size, uint kind, const void* site);
  void (*threadgroup_barrier)(uint flags, const void* site);
  void (*simdgroup_barrier)(uint flags, const void* site);
  const unsigned char* (*simd_exchange)(
      const void* value, uint size, uint* active, const void* site);
  uint (*lane)();
  void (*inactive_lane)(uint lane, const void* site);
  void* (*threadgroup_variable)(const void* key, ulong size, const char* name);
  void (*array_bounds)(ulong index, const void* site);
  void (*division_by_zero)(const void* site);
  void (*fence)(uint flags, uint order, uint scope, const void* site);
};

// The table that is in use until the host sets another table. Its functions do nothing. The
// library's constructors call them.
static const Table silent = {
    [](const void*, ulong, uint, const void*) {},
    [](uint, const void*) {},
    [](uint, const void*) {},
    [](const void*, uint, uint*, const void*) -> const unsigned char* { return nullptr; },
    []() -> uint { return 0; },
    [](uint, const void*) {},
    [](const void*, ulong, const char*) -> void* { return nullptr; },
    [](ulong, const void*) {},
    [](const void*) {},
    [](uint, uint, uint, const void*) {},
};
static const Table* table = &silent;

extern "C" {

const void* msl_kernels;

void msl_attach(const Table* host) {
  table = host;
}

#define SITE __builtin_return_address(0)
#define ACCESS(N)                                                              \
  void __asan_load##N##_noabort(const void* at) {                              \
    table->access(at, N, 1 | 4, SITE);                                         \
  }                                                                            \
  void __asan_store##N##_noabort(const void* at) {                             \
    table->access(at, N, 2 | 4, SITE);                                         \
  }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __asan_loadN_noabort(const void* at, ulong size) {
  table->access(at, size, 1, SITE);
}
void __asan_storeN_noabort(const void* at, ulong size) {
  table->access(at, size, 2, SITE);
}
void* __asan_memcpy(void* to, const void* from, ulong size) {
  table->access(from, size, 1, SITE);
  table->access(to, size, 2, SITE);
  return __builtin_memcpy(to, from, size);
}
void* __asan_memmove(void* to, const void* from, ulong size) {
  table->access(from, size, 1, SITE);
  table->access(to, size, 2, SITE);
  return __builtin_memmove(to, from, size);
}
void* __asan_memset(void* to, int byte, ulong size) {
  table->access(to, size, 2, SITE);
  return __builtin_memset(to, byte, size);
}
void __asan_handle_no_return() {}

// The callbacks of -fsanitize=array-bounds,local-bounds.
void __ubsan_handle_out_of_bounds(const void*, ulong index) {
  table->array_bounds(index, SITE);
}
void __ubsan_handle_out_of_bounds_abort(const void*, ulong index) {
  table->array_bounds(index, SITE);
}
void __ubsan_handle_local_out_of_bounds() {
  table->array_bounds(~0ul, SITE);
}

// The callback of -fsanitize=integer-divide-by-zero.
void __ubsan_handle_divrem_overflow(const void*, ulong, ulong) {
  table->division_by_zero(SITE);
}

void msl_threadgroup_barrier(uint flags) {
  table->threadgroup_barrier(flags, SITE);
}
void msl_simdgroup_barrier(uint flags) {
  table->simdgroup_barrier(flags, SITE);
}
void msl_fence(uint flags, uint order, uint scope) {
  table->fence(flags, order, scope, SITE);
}
const unsigned char* msl_simd_exchange(const void* value, uint size, uint* active) {
  return table->simd_exchange(value, size, active, SITE);
}
uint msl_lane() {
  return table->lane();
}
void msl_inactive_lane(uint lane) {
  table->inactive_lane(lane, SITE);
}
void msl_atomic(const void* object, uint size, uint kind) {
  table->access(object, size, kind | 4 | 8, SITE);
}
void msl_copy(void* to, const void* from, ulong size) {
  __builtin_memcpy(to, from, size);
}
void* msl_threadgroup_variable(const void* key, ulong size, const char* name) {
  return table->threadgroup_variable(key, size, name);
}

// Older versions of libgcc lack this conversion. It rounds to nearest, ties to even, and keeps NaN.
__bf16 __truncsfbf2(float value) {
  const uint bits = __builtin_bit_cast(uint, value);
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  const uint rounded = nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return __builtin_bit_cast(__bf16, static_cast<unsigned short>(rounded));
}
__bf16 __truncdfbf2(double value) {
  return __truncsfbf2(static_cast<float>(value));
}
}
