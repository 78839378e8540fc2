#pragma once

// As much of MLX as cpp/gpu needs, with an encoder that notes what would be encoded.

#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace MTL {

struct Library {};

struct ComputePipelineState {
  std::string kernel;
  uint32_t limit;
  uint32_t maxTotalThreadsPerThreadgroup() const {
    return limit;
  }
};

struct Size {
  uint64_t width, height, depth;
  Size(uint64_t x, uint64_t y, uint64_t z) : width(x), height(y), depth(z) {}
};

} // namespace MTL

namespace mlx::core {

using Shape = std::vector<int>;

struct Memory {
  const void* address;
  const void* ptr() const {
    return address;
  }
};

struct Dtype {};

struct array {
  int id;
  Shape shape_;
  std::string dtype;
  const void* address;

  int shape(int axis) const {
    return shape_.at(axis < 0 ? shape_.size() + axis : axis);
  }
  const Shape& shape() const {
    return shape_;
  }
  size_t ndim() const {
    return shape_.size();
  }
  size_t size() const {
    size_t count = 1;
    for (int extent : shape_) {
      count *= extent;
    }
    return count;
  }
  Memory buffer() const {
    return {address};
  }
};

inline std::string type_to_name(const array& a) {
  return a.dtype;
}

struct Device {};

struct Stream {
  Device device;
};

struct StreamOrDevice {};

namespace metal {

struct Device {
  uint32_t limit = 0;
  MTL::Library library;
  MTL::ComputePipelineState state;

  template <typename Source>
  MTL::Library* get_library(const std::string&, const Source&) {
    return &library;
  }
  MTL::ComputePipelineState* get_kernel(const std::string& name, MTL::Library*) {
    state = {name, limit};
    return &state;
  }
};

inline Device& device(const mlx::core::Device&) {
  static Device only;
  return only;
}

struct CommandEncoder {
  std::string kernel;
  std::vector<uint64_t> grid, group;
  std::vector<std::pair<int, size_t>> threadgroup;
  std::vector<std::pair<int, int>> arrays; // index, id
  int params_index = -1;
  std::string params;

  void set_compute_pipeline_state(MTL::ComputePipelineState* state) {
    kernel = state->kernel;
  }
  void set_threadgroup_memory_length(size_t bytes, int index) {
    threadgroup.push_back({index, bytes});
  }
  void set_input_array(const array& a, int index) {
    arrays.push_back({index, a.id});
  }
  void set_output_array(const array& a, int index) {
    arrays.push_back({index, a.id});
  }
  template <typename T>
  void set_bytes(const T& value, int index) {
    params.assign(reinterpret_cast<const char*>(&value), sizeof(T));
    params_index = index;
  }
  void dispatch_threadgroups(MTL::Size groups, MTL::Size threads) {
    grid = {groups.width, groups.height, groups.depth};
    group = {threads.width, threads.height, threads.depth};
  }
};

inline CommandEncoder& get_command_encoder(const Stream&) {
  static CommandEncoder only;
  return only;
}

} // namespace metal
} // namespace mlx::core

namespace mlx_primitives {

namespace mx = mlx::core;

struct FusedPrimitive {
  explicit FusedPrimitive(mx::Stream stream) : stream_(stream) {}
  mx::Stream stream() const {
    return stream_;
  }

 private:
  mx::Stream stream_;
};

#define COMPOSED_METHODS(TYPE) PRIMITIVE_METHODS(TYPE)
#define PRIMITIVE_METHODS(TYPE) \
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&);

inline void require_row_contiguous(const char*, const mx::array&) {}

/** The Whether out gets the buffer of x. */
inline bool donated = false;

inline void donate_or_allocate(const mx::array& x, mx::array& out) {
  out.address = donated ? x.address : &out;
}

struct Metallib {
  std::string path, origin;
};

inline Metallib find_metallib() {
  return {"kernels.metallib", ""};
}

inline std::string embedded_metal_source(const std::string&) {
  return {};
}

} // namespace mlx_primitives
