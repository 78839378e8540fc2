#include "runtime/cuda_kernels.h"

#include <dlfcn.h>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "mlx-primitives/src/cuda.rs.h"
#include "runtime/metallib.h"

namespace mlx_primitives {

namespace {

/**
 * A compiled kernel. Each slot has a separate lock, so that threads can compile different kernels
 * at the same time.
 */
struct Slot {
  std::mutex compiling;
  std::unique_ptr<CudaKernel> kernel;
};

std::shared_ptr<Slot> slot(const std::string& key) {
  // The map and its lock are never destroyed, because tasks may still run while the process ends.
  static auto* mutex = new std::mutex();
  static auto* slots = new std::unordered_map<std::string, std::shared_ptr<Slot>>();
  std::lock_guard lock(*mutex);
  auto& found = (*slots)[key];
  if (!found) {
    found = std::make_shared<Slot>();
  }
  return found;
}

std::vector<bridge::CudaBound> bound(const Dispatch& dispatch) {
  std::vector<bridge::CudaBound> all;
  for (const auto& binding : dispatch.bindings) {
    all.push_back({binding.index, binding.value_bytes()});
  }
  return all;
}

/** Returns the key of a kernel. Every dispatch builds a key, so this avoids slow string streams. */
std::string key_of(const Dispatch& dispatch, int device) {
  std::string key = dispatch.launch.kernel;
  key.reserve(256);
  auto add = [&key](uint64_t number) {
    key.push_back('/');
    key.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  if (dispatch.library) {
    key += "/" + dispatch.library->name() + "/" + dispatch.pipeline;
  }
  add(dispatch.launch.reads);
  add(static_cast<uint64_t>(device) << 1 | (dispatch.grid_is_threads ? 1 : 0));
  for (const auto& binding : dispatch.bindings) {
    add(uint64_t{binding.index} << 32 | binding.value_bytes());
  }
  for (const auto& constant : dispatch.constants) {
    add(uint64_t{constant.index} << 32 | constant.data_type);
    add(constant.bits);
  }
  return key;
}

std::unique_ptr<CudaKernel> load(const Dispatch& dispatch, uint32_t architecture) {
  std::string source = dispatch.library
                           ? dispatch.library->source()
                           : embedded_metal_source(dispatch.stem, dispatch.launch.kernel);
  if (uint32_t reads = dispatch.launch.reads; reads != READS) {
    source = "#define MLXP_READS " + std::to_string(reads) + "\n" + source;
  }
  auto all = bound(dispatch);
  std::vector<bridge::CudaConstant> constants;
  for (const auto& constant : dispatch.constants) {
    constants.push_back({constant.index, constant.data_type, constant.bits});
  }
  auto made = bridge::cuda_kernel(
      source,
      dispatch.launch.kernel,
      {all.data(), all.size()},
      {constants.data(), constants.size()},
      dispatch.grid_is_threads,
      architecture);
  CUmodule module;
  CUDA_DRIVER(cuModuleLoadData, &module, made.code.data());
  auto kernel = std::make_unique<CudaKernel>();
  kernel->name = dispatch.launch.kernel;
  CUDA_DRIVER(cuModuleGetFunction, &kernel->function, module, std::string(made.symbol).c_str());
  int threads;
  auto most = CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
  CUDA_DRIVER(cuFuncGetAttribute, &threads, most, kernel->function);
  kernel->max_threads = static_cast<uint32_t>(threads);
  kernel->shared_bytes = 48 << 10; // the default limit
  for (size_t i = 0; i < made.arguments.size(); ++i) {
    const auto& argument = made.arguments[i];
    size_t offset, bytes;
    CUDA_DRIVER(cuFuncGetParamInfo, kernel->function, i, &offset, &bytes);
    kernel->arguments.push_back(
        {static_cast<CudaArgument::Kind>(argument.kind), argument.index, bytes});
  }
  return kernel;
}

} // namespace

void* cuda_driver_function(const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (!found) {
    throw std::runtime_error(
        "[cuda] NVIDIA's driver has no " + std::string(name) +
        ": version 550 or later of the driver is needed.");
  }
  return found;
}

void check_cuda(const char* function, CUresult result) {
  if (result == CUDA_SUCCESS) {
    return;
  }
  const char* text = nullptr;
  auto* describe =
      reinterpret_cast<decltype(&cuGetErrorString)>(dlsym(RTLD_DEFAULT, "cuGetErrorString"));
  if (describe) {
    describe(result, &text);
  }
  throw std::runtime_error(
      "[cuda] " + std::string(function) + " failed with code " + std::to_string(result) + ": " +
      (text ? text : "an unknown error"));
}

CudaKernel* cuda_kernel(const Dispatch& dispatch, int device, uint32_t architecture) {
  auto found = slot(key_of(dispatch, device));
  std::lock_guard lock(found->compiling);
  if (!found->kernel) {
    found->kernel = load(dispatch, architecture);
  }
  return found->kernel.get();
}

} // namespace mlx_primitives
