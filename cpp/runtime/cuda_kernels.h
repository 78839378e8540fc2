#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/dispatch.h"

namespace mlx_primitives {

/**
 * A function of CUDA's driver, found in the library that libmlx has loaded. If this crate linked to
 * the driver, a build would need a driver.
 */
void* cuda_driver_function(const char* name);

/** Calls a function of CUDA's driver with its type in cuda.h; throws if the call fails. */
#define CUDA_DRIVER(FUNCTION, ...)                                                              \
  ::mlx_primitives::check_cuda(                                                                 \
      #FUNCTION,                                                                                \
      reinterpret_cast<decltype(&FUNCTION)>(::mlx_primitives::cuda_driver_function(#FUNCTION))( \
          __VA_ARGS__))

void check_cuda(const char* function, CUresult result);

/** One argument of a kernel, in the order of its parameters. */
struct CudaArgument {
  enum Kind { Buffer, ThreadgroupMemory, Grid } kind;
  uint32_t index;
  size_t bytes; // of the parameter
};

/** A kernel on a device. It stays loaded until the process ends. */
struct CudaKernel {
  std::string name;
  CUfunction function;
  uint32_t max_threads;
  uint32_t shared_bytes; // that launches may use
  std::vector<CudaArgument> arguments;
};

/**
 * The dispatch's kernel on the current device. It is compiled for the device's architecture (90 for
 * sm_90) at its first use.
 */
CudaKernel* cuda_kernel(const Dispatch& dispatch, int device, uint32_t architecture);

} // namespace mlx_primitives
