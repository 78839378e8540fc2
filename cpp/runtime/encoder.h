#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "mlx/stream.h"
#include "runtime/dispatch.h"
#include "runtime/metallib.h"

namespace mlx_primitives {

/** A kernel that a backend has compiled and loaded, and keeps until the process ends. */
struct Kernel {
  void* handle;
  uint32_t max_threads; // per threadgroup
};

/**
 * A GPU's way to run dispatches on one stream. Metal implements it, also for the simulator, which
 * stands in for MLX's Metal device; CUDA implements it too. CMake chooses which are compiled.
 */
class Encoder {
 public:
  virtual ~Encoder() = default;

  /** The largest threadgroup that launches are planned for. */
  virtual uint32_t most_threads() const {
    return MAX_THREADS;
  }

  /** Plans a launch anew where this GPU runs rows better in another way. */
  virtual void plan_anew(Launch&, uint32_t /*most_threads*/) const {}

  /** Finds or compiles the dispatch's kernel. */
  virtual Kernel kernel(const Dispatch& dispatch) = 0;

  /** Begins a dispatch of this kernel: forgets all bindings. */
  virtual void begin(const Kernel& kernel) = 0;
  virtual void reserve_threadgroup_memory(uint32_t index, uint32_t bytes) = 0;
  virtual void bind_input(const mx::array& array, uint32_t index, int64_t offset) = 0;
  virtual void bind_output(mx::array& array, uint32_t index, int64_t offset) = 0;
  virtual void bind_bytes(const std::vector<uint8_t>& bytes, uint32_t index) = 0;
  /** Whether the host reads the memory of an array, which is computed, at no great cost. */
  virtual bool is_on_host(const mx::array&) const {
    return true;
  }
  /** Runs the kernel with what was bound, after the dispatches that it depends on. */
  virtual void run(const Launch& launch, bool grid_is_threads) = 0;

  /** Keeps an array's memory until the GPU is done with what was encoded. */
  virtual void keep(const mx::array& array) = 0;
};

/** Metal's encoder of the stream; throws in the name of the op if there is no Metal. */
std::unique_ptr<Encoder> metal_encoder(const mx::Stream& stream, const char* op);

/** The kernels of metal/; none if there is no Metal. */
std::vector<MetalKernel> metal_kernels();

/**
 * The threads that a threadgroup of the kernel may have, as Metal says once the kernel's pipeline
 * is made. Throws if it cannot be made.
 */
uint32_t metal_kernel_threads(const MetalKernel& kernel);

/** CUDA's encoder of the stream; null if the stream is not one of CUDA. */
std::unique_ptr<Encoder> cuda_encoder(const mx::Stream& stream);

/**
 * Has MLX construct the list of this thread's encoders of Metal or CUDA, which it destroys when the
 * thread ends: after all that is constructed later.
 */
void construct_metal_encoders();
void construct_cuda_encoders();

/** Whether the stream is one of an NVIDIA GPU. */
bool is_cuda(const mx::Stream& stream);

/** Whether MLX's graph of the stream has all that MLX gives an NVIDIA GPU at a time. */
bool is_graph_full(const mx::Stream& stream);

/** Gives the GPU the graph of the stream. MLX runs `done` after it, on another thread. */
void hand_over_graph(const mx::Stream& stream, std::function<void()> done);

/**
 * Whether ops use kernels of metal/nvidia, whose tensor cores multiply 16-bit types: on GPUs of
 * compute capability 8.0 or later, and where a test simulates them.
 */
bool plans_for_nvidia(const mx::Stream& stream);

/** Plans a launch of rows anew, as the stream's encoder does. */
void plan_anew(Launch& launch, uint32_t most_threads, const mx::Stream& stream);

/** The cores of an NVIDIA GPU, and the most memory of a threadgroup. */
struct NvidiaLimits {
  uint32_t cores;
  uint32_t threadgroup_bytes;
};

/** Those of the stream's GPU, or of one core where a test simulates it. */
NvidiaLimits nvidia_limits(const mx::Stream& stream);

/** Whether MLX's allocator gives memory of a GPU that the CPU should not touch without need. */
bool has_device_memory();

/**
 * Starts to move the memory of these arrays, which have been computed, to the NVIDIA GPU of this
 * thread's default stream, as far as the GPU has room.
 */
void prefetch_cuda(const std::vector<mx::array>& arrays);

/** The origin of CUDA's kernels, for a person; empty if there is no CUDA. */
std::string cuda_description();

} // namespace mlx_primitives
