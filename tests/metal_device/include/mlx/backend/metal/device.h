// Replaces MLX 0.32.4's mlx/backend/metal/device.h on Linux. It has the parts that eval_gpu may
// use, with the same names and signatures. A dispatch becomes a task of the CPU stream. The task
// runs the kernel in the simulator of crates/metal-sim.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "mlx/array.h"
#include "mlx/backend/common/metal_kernel.h"
#include "mlx/device.h"
#include "mlx/small_vector.h"
#include "mlx/stream.h"

namespace NS {

using UInteger = unsigned long;

} // namespace NS

namespace MTL {

enum DataType : NS::UInteger {
  DataTypeFloat = 3,
  DataTypeHalf = 16,
  DataTypeInt = 29,
  DataTypeUInt = 33,
  DataTypeShort = 37,
  DataTypeUShort = 41,
  DataTypeChar = 45,
  DataTypeUChar = 49,
  DataTypeBool = 53,
};
class Function;
class Library;

struct Size {
  Size() = default;
  Size(NS::UInteger w, NS::UInteger h, NS::UInteger d) : width(w), height(h), depth(d) {}

  NS::UInteger width;
  NS::UInteger height;
  NS::UInteger depth;
};

class ComputePipelineState {
 public:
  struct Kernel;

  explicit ComputePipelineState(std::shared_ptr<const Kernel> kernel) : kernel_(kernel) {}

  /** The number in MLX_PRIMITIVES_SIMULATE_THREADS, or 1024. */
  NS::UInteger maxTotalThreadsPerThreadgroup() const;

  NS::UInteger threadExecutionWidth() const {
    return 32;
  }

  const std::shared_ptr<const Kernel>& kernel() const {
    return kernel_;
  }

 private:
  std::shared_ptr<const Kernel> kernel_;
};

} // namespace MTL

namespace mlx::core::metal {

using MTLFCList = std::vector<std::tuple<const void*, MTL::DataType, NS::UInteger>>;

class CommandEncoder {
 public:
  explicit CommandEncoder(Stream stream) : stream_(stream) {}

  CommandEncoder(const CommandEncoder&) = delete;
  CommandEncoder& operator=(const CommandEncoder&) = delete;

  void set_input_array(const array& a, int idx, int64_t offset = 0);
  void set_output_array(array& a, int idx, int64_t offset = 0);
  void add_temporary(array arr);
  void add_temporaries(std::vector<array> arrays);

  void dispatch_threadgroups(MTL::Size grid_dims, MTL::Size group_dims);
  void dispatch_threads(MTL::Size grid_dims, MTL::Size group_dims);

  /** Does nothing, because the tasks of a stream run one after the other. */
  void maybeInsertBarrier() {}
  void barrier() {}

  /** Forgets all bindings. Metal keeps them, but they belong to an earlier, unknown kernel. */
  void set_compute_pipeline_state(MTL::ComputePipelineState* kernel);

  template <typename Vec, typename = std::enable_if_t<is_vector_v<Vec>>>
  void set_vector_bytes(const Vec& vec, size_t nelems, int idx) {
    using T = typename Vec::value_type;
    T none{};
    set_inline(nelems > 0 ? vec.data() : &none, (nelems > 0 ? nelems : 1) * sizeof(T), idx);
  }
  template <typename Vec, typename = std::enable_if_t<is_vector_v<Vec>>>
  void set_vector_bytes(const Vec& vec, int idx) {
    return set_vector_bytes(vec, vec.size(), idx);
  }

  template <typename T>
  void set_bytes(const T* v, int n, int idx) {
    return set_inline(v, n * sizeof(T), idx);
  }
  template <typename T>
  void set_bytes(const T& v, int idx) {
    return set_inline(&v, sizeof(T), idx);
  }

  void set_threadgroup_memory_length(size_t length, int idx);

 private:
  struct Binding {
    uintptr_t address;
    size_t before; // bytes of a view with negative strides
    size_t bytes;  // from the address on
    bool writable;
    std::shared_ptr<const std::vector<uint8_t>> copy; // what set_bytes was given
    uintptr_t array;                                  // the `array::id` of what is written
  };

  void set_inline(const void* data, size_t bytes, int idx);
  void set_array(const array& a, int idx, int64_t offset, bool writable);
  void dispatch(MTL::Size grid, MTL::Size group, bool grid_is_threads);

  Stream stream_;
  const MTL::ComputePipelineState* pipeline_{nullptr};
  std::unordered_map<int, Binding> bindings_;
  std::unordered_map<int, size_t> threadgroup_;
};

class Device {
 public:
  Device();
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /** Throws, because a metallib has code for Apple's GPUs only. */
  MTL::Library* get_library(const std::string& name, const std::string& path = "");

  MTL::Library* get_library(
      const std::string& name,
      const CompileOptions& compile_options,
      const std::function<std::string(void)>& builder);

  MTL::Library* get_library(
      const std::string& name, const std::function<std::string(void)>& builder) {
    return get_library(name, {}, builder);
  }

  void clear_library(const std::string& name);

  /** Throws if there are linked functions, which no kernel of this crate has. */
  MTL::ComputePipelineState* get_kernel(
      const std::string& base_name,
      MTL::Library* mtl_lib,
      const std::string& hash_name = "",
      const MTLFCList& func_consts = {},
      const std::vector<MTL::Function*>& linked_functions = {});

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<MTL::Library>> libraries_;
};

Device& device(mlx::core::Device);
CommandEncoder& get_command_encoder(Stream s);

} // namespace mlx::core::metal
