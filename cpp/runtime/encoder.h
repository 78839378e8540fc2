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
 * Runs dispatches on one stream of a GPU. Metal and CUDA implement it. The simulator uses Metal's
 * implementation, with a stand-in for MLX's Metal device. CMake chooses which implementations are
 * compiled.
 */
class Encoder {
 public:
  virtual ~Encoder() = default;

  /** The number of threads of the largest threadgroup that launches are planned for. */
  virtual uint32_t most_threads() const {
    return MAX_THREADS;
  }

  /** Plans a launch of rows again if this GPU runs another plan faster. */
  virtual void plan_anew(Launch&, uint32_t /*most_threads*/) const {}

  /** Finds or compiles the dispatch's kernel. */
  virtual Kernel kernel(const Dispatch& dispatch) = 0;

  /** Begins a dispatch of this kernel, without any bindings. */
  virtual void begin(const Kernel& kernel) = 0;
  virtual void reserve_threadgroup_memory(uint32_t index, uint32_t bytes) = 0;
  virtual void bind_input(const mx::array& array, uint32_t index, int64_t offset) = 0;
  virtual void bind_output(mx::array& array, uint32_t index, int64_t offset) = 0;
  virtual void bind_bytes(const std::vector<uint8_t>& bytes, uint32_t index) = 0;
  /** Whether the host can read the memory of a computed array quickly. */
  virtual bool is_on_host(const mx::array&) const {
    return true;
  }
  /** Runs the kernel with its bindings, after the dispatches that it depends on. */
  virtual void run(const Launch& launch, bool grid_is_threads) = 0;

  /** Keeps an array's memory until the GPU has run the dispatches that were encoded. */
  virtual void keep(const mx::array& array) = 0;
};

/** Metal's encoder of the stream. If there is no Metal, throws an error that names the op. */
std::unique_ptr<Encoder> metal_encoder(const mx::Stream& stream, const char* op);

/** The kernels of metal/ except metal/nvidia/; none if there is no Metal. */
std::vector<MetalKernel> metal_kernels();

/**
 * The threads that a threadgroup of the kernel may have, according to the kernel's Metal pipeline.
 * Throws if the pipeline cannot be made.
 */
uint32_t metal_kernel_threads(const MetalKernel& kernel);

/** CUDA's encoder of the stream; null if it is not a CUDA stream. */
std::unique_ptr<Encoder> cuda_encoder(const mx::Stream& stream);

/**
 * Make MLX construct the list of this thread's encoders of Metal or CUDA. When the thread ends, the
 * list is destroyed after all objects that are constructed later.
 */
void construct_metal_encoders();
void construct_cuda_encoders();

/** Whether the stream belongs to an NVIDIA GPU. */
bool is_cuda(const mx::Stream& stream);

/** Whether MLX's graph of the stream is as large as the graphs that MLX gives an NVIDIA GPU. */
bool is_graph_full(const mx::Stream& stream);

/** Gives the GPU the graph of the stream. When it has run, MLX calls `done` on another thread. */
void hand_over_graph(const mx::Stream& stream, std::function<void()> done);

/**
 * Whether ops use kernels of metal/nvidia, which need tensor cores for 16-bit types. True on GPUs
 * of compute capability 8.0 or later, and in a test that simulates one.
 */
bool plans_for_nvidia(const mx::Stream& stream);

/** Plans a launch of rows again, as the stream's encoder does. */
void plan_anew(Launch& launch, uint32_t most_threads, const mx::Stream& stream);

/** The number of cores of an NVIDIA GPU, and the largest threadgroup memory. */
struct NvidiaLimits {
  uint32_t cores;
  uint32_t threadgroup_bytes;
};

/** The limits of the stream's GPU. A test that simulates a GPU gets the limits of one core. */
NvidiaLimits nvidia_limits(const mx::Stream& stream);

/** Whether MLX's allocator returns GPU memory, which the CPU should access only if necessary. */
bool has_device_memory();

/**
 * Starts to move the memory of these computed arrays to the NVIDIA GPU of this thread's default
 * stream, as far as the GPU has room.
 */
void prefetch_cuda(const std::vector<mx::array>& arrays);

/** Where CUDA's kernels come from, as text for a person; empty if there is no CUDA. */
std::string cuda_description();

} // namespace mlx_primitives
