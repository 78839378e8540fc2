// Describes the dispatches of a primitive as data. This header needs neither a GPU nor Metal's
// headers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../../metal/shared.h"
#include "mlx/array.h"

namespace mlx_primitives {

namespace mx = mlx::core;

using Arrays = std::vector<mx::array>;

/** The rows of an array, which lie along its last axis. A scalar is one row with one element. */
struct Rows {
  uint64_t count;
  uint32_t axis;

  explicit Rows(const mx::array& x) : axis(x.ndim() > 0 ? static_cast<uint32_t>(x.shape(-1)) : 1) {
    count = axis > 0 ? x.size() / axis : 0;
  }
  /**
   * The number of rows as a 32-bit kernel parameter. The plan has already checked that the number
   * fits.
   */
  uint32_t narrow() const {
    return static_cast<uint32_t>(count);
  }
};

/**
 * The arguments of `plan_rows` for a reduction of rows. An encoder may plan the reduction again for
 * its GPU.
 */
struct RowsPlan {
  std::string op;
  std::string suffix; // of the kernel's name
  Rows rows;
  uint32_t slots; // floats of scratch memory per SIMD group
  uint32_t quads; // fewest quads per thread, if a threadgroup processes a row
};

/** The kernel, the number of threadgroups and the threads of each threadgroup. */
struct Launch {
  std::string kernel;
  std::array<uint32_t, 3> grid;
  std::array<uint32_t, 3> group;
  uint32_t threadgroup_bytes = 0; // threadgroup memory at index 0
  uint32_t reads = READS;         // elements per load; only CUDA has other values
  std::optional<RowsPlan> rows{};

  uint32_t threads_per_group() const {
    return group[0] * group[1] * group[2];
  }
};

/**
 * An int32 for a kernel. The encoder passes its value if the host knows it when it encodes the
 * dispatch.
 */
struct KnownInteger {
  uint32_t known;
  int32_t value;
};

/** An array or bytes that a dispatch binds to an index of a kernel. */
struct Binding {
  uint32_t index;
  std::optional<mx::array> array;
  bool written = false;
  int64_t offset = 0; // in bytes, from the first element of the array
  std::vector<uint8_t> bytes;
  bool unread = false; // binds the array of the first binding instead
  bool known = false;  // binds the array's only element as a KnownInteger

  /** The number of bytes that are passed by value, or 0 for an array. */
  uint32_t value_bytes() const {
    return known ? sizeof(KnownInteger) : array ? 0 : static_cast<uint32_t>(bytes.size());
  }
};

/** The value of a function constant, which specializes a kernel. */
struct Constant {
  uint32_t index;
  uint32_t data_type; // an MTL::DataType
  uint64_t bits;      // the value, in the low bytes
};

/** Threadgroup memory at an index other than 0. `Launch` describes the memory at index 0. */
struct ThreadgroupMemory {
  uint32_t index;
  uint32_t bytes;
};

/** A library of kernels from a user of this crate. */
class KernelLibrary {
 public:
  virtual ~KernelLibrary() = default;
  virtual std::string name() const = 0;
  /** The path of a metallib; empty if the library is given as source. */
  virtual std::string metallib() const = 0;
  virtual std::string source() const = 0;
  /** Must be called after Metal has loaded the metallib. */
  virtual void loaded() const = 0;
};

/**
 * One dispatch of a kernel. A bound array with neither a primitive nor memory is temporary. The
 * encoder allocates its memory and keeps it until the GPU is done.
 */
struct Dispatch {
  std::string stem; // the kernel is in metal/<stem>.metal if there is no library
  Launch launch;
  std::vector<Binding> bindings;

  // Only dispatches of a user's kernel set these fields.
  std::shared_ptr<const KernelLibrary> library;
  std::string pipeline; // the key in Metal's cache of pipelines
  std::vector<Constant> constants;
  std::vector<ThreadgroupMemory> memory;
  bool grid_is_threads = false;

  Dispatch() = default;
  Dispatch(std::string stem_, Launch launch_)
      : stem(std::move(stem_)), launch(std::move(launch_)) {}

  /** Binds an array to the next index. */
  void bind(mx::array array, bool written = false) {
    bindings.push_back({next(), std::move(array), written, 0, {}});
  }
  /**
   * Binds the first array to an index that the kernel does not read, because Metal requires that
   * every index is bound.
   */
  void bind_unread() {
    bindings.push_back({next(), std::nullopt, false, 0, {}, true});
  }
  /**
   * Binds an array's only element. The encoder passes it by value if the host knows it at that
   * time.
   */
  void bind_known(mx::array array) {
    bindings.push_back({next(), std::move(array), false, 0, {}, false, true});
  }
  void bind_bytes(const void* from, size_t bytes) {
    bindings.push_back({next(), std::nullopt, false, 0, std::vector<uint8_t>(bytes)});
    std::memcpy(bindings.back().bytes.data(), from, bytes);
  }

  /** Binds the inputs from index 0 on, then the outputs, and then the parameters as bytes. */
  template <typename Params>
  Dispatch(std::string stem_, Launch launch_, Arrays inputs, Arrays outputs, const Params& params)
      : Dispatch(std::move(stem_), std::move(launch_)) {
    bindings.reserve(inputs.size() + outputs.size() + 1);
    for (auto& array : inputs) {
      bind(std::move(array));
    }
    for (auto& array : outputs) {
      bind(std::move(array), true);
    }
    bind_bytes(&params, sizeof(Params));
  }

 private:
  uint32_t next() const {
    return static_cast<uint32_t>(bindings.size());
  }
};

constexpr uint32_t MAX_THREADS = 1024; // per threadgroup, on every Apple GPU

constexpr uint64_t ceil_div(uint64_t a, uint64_t b) {
  return (a + b - 1) / b;
}

constexpr uint32_t round_up(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(ceil_div(a, b)) * b;
}

/**
 * Returns a number of rows, threadgroups or threads as a 32-bit number, which kernels need. Throws
 * if the number is larger.
 */
uint32_t grid_count(std::string_view op, std::string_view what, uint64_t count);

/** `most` threads, rounded down to a multiple of a SIMD group; throws if the result is 0. */
uint32_t whole_simds(std::string_view op, uint32_t most);

/** An array without memory, for results that only other dispatches of the same op read. */
mx::array temporary(mx::Shape shape, mx::Dtype dtype);

/**
 * The suffix for an array's type in the names of kernels: _float32, _float16, _bfloat16, _uint32.
 */
std::string type_suffix(const mx::array& x);

/**
 * Plans a reduction of rows. A quad is READS consecutive elements. A kernel has these forms, unless
 * the caller replaces a form that it lacks: `simd` with one SIMD group per row; `row`, `row2` and
 * `row4` with one threadgroup per row and 1, 2 or 4 quads per thread; and `looped` for rows of any
 * length. `slots` is the scratch memory of a SIMD group, in floats. `quads` is the smallest number
 * of quads per thread if a threadgroup processes a row: 1, 2 or 4.
 */
Launch plan_rows(
    std::string_view op,
    std::string_view suffix,
    Rows rows,
    uint32_t slots,
    uint32_t max_threads,
    uint32_t quads = 1);

} // namespace mlx_primitives
