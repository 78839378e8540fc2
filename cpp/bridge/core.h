// The C++ side of src/ffi/mod.rs. It converts types, and checks that arrays are not larger than
// memory. The groups of functions have the same order as in that file.
#pragma once

#include <array>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mlx/mlx.h"
#include "runtime/process.h"
#include "rust/cxx.h"

namespace rust::behavior {

/** Passes the text of an exception to Rust. */
template <typename Try, typename Fail>
static void trycatch(Try&& run, Fail&& fail) noexcept try {
  run();
} catch (const std::exception& error) {
  fail(mlx_primitives::reason(error));
} catch (...) {
  fail(std::string("an exception that says nothing"));
}

} // namespace rust::behavior

namespace mlx_primitives::bridge {

namespace mx = mlx::core;

// Defined by cxx in mlx-primitives/src/ffi/mod.rs.h.
enum class Dtype : uint8_t;
enum class UnaryOp : uint8_t;
enum class BinaryOp : uint8_t;
enum class ReduceOp : uint8_t;
struct MetalKernel;
struct Place;
struct LaunchPlan;
struct GraphNode;

using MlxArray = mx::array;
using Handle = std::unique_ptr<mx::array>;
using ArrayList = std::vector<mx::array>;
using ListHandle = std::unique_ptr<ArrayList>;
using Ints = rust::Slice<const int32_t>;

// Tells Rust whether a stream has finished the tasks that were queued before the signal.
struct Signal {
  std::shared_future<void> reached;
};
bool is_set(const Signal& signal);

// Versions, devices, memory.
rust::String header_version();
rust::String library_version();
void check_version();
void be_guest();
bool gpu_available();
bool default_is_gpu();
rust::String device_name(bool gpu);
size_t recommended_working_set();
rust::String kernels_origin();
rust::Vec<MetalKernel> metal_kernels();
uint32_t metal_kernel_threads(const MetalKernel& kernel);
Place current_place();
void set_place(Place place);
int32_t new_stream(bool gpu);
void synchronize(Place place);
int32_t active_tasks();
void clear_streams();
size_t active_memory();
size_t peak_memory();
size_t cache_memory();
void reset_peak_memory();
void clear_cache();
size_t set_cache_limit(size_t bytes);
size_t memory_limit();
size_t set_memory_limit(size_t bytes);
size_t set_wired_limit(size_t bytes);
void prefetch(const ArrayList& arrays);

// Lists of arrays.
ListHandle new_list();
void push(ArrayList& list, const MlxArray& array);

// Handles and their properties.
Handle share(const MlxArray& array);
std::array<size_t, 2> shape_words(const MlxArray& array);
void assign(MlxArray& place, const MlxArray& array);
rust::Slice<const int32_t> shape(const MlxArray& array);
rust::Vec<int64_t> strides(const MlxArray& array);
Dtype dtype(const MlxArray& array);
bool is_scheduled(const MlxArray& array);
bool is_row_contiguous(const MlxArray& array);
rust::String primitive_name(const MlxArray& array);
rust::String to_text(const MlxArray& array);

// Evaluation.
void eval(const ArrayList& arrays);
bool finished(const MlxArray& array);
void async_eval(const ArrayList& arrays);
Handle contents(const MlxArray& array);
Handle detached(Handle array);
const uint8_t* data(const MlxArray& array);

// Creation.
Handle from_bytes(rust::Slice<const uint8_t> bytes, Ints shape, Dtype dtype);
Handle block(size_t bytes);
Handle within(const MlxArray& block, size_t offset, Ints shape, Dtype dtype);
Handle full(Ints shape, const MlxArray& value);
Handle arange(double start, double stop, double step, Dtype dtype);

// Built-in ops of MLX.
Handle unary(UnaryOp op, const MlxArray& a);
Handle binary(BinaryOp op, const MlxArray& a, const MlxArray& b);
Handle reduce(ReduceOp op, const MlxArray& a, Ints axes, bool keepdims);
Handle reshape(const MlxArray& a, Ints shape);
Handle transpose(const MlxArray& a, Ints axes);
Handle slice(const MlxArray& a, Ints start, Ints stop, Ints steps);
Handle slice_update(const MlxArray& a, const MlxArray& update, Ints start, Ints stop);
Handle broadcast_to(const MlxArray& a, Ints shape);
Handle expand_dims(const MlxArray& a, Ints axes);
Handle squeeze(const MlxArray& a, Ints axes);
Handle astype(const MlxArray& a, Dtype dtype);
Handle contiguous(const MlxArray& a);
Handle concatenate(const ArrayList& arrays, int32_t axis);
ListHandle split_at(const MlxArray& a, int32_t place, int32_t axis);
Handle stack(const ArrayList& arrays, int32_t axis);
Handle take(const MlxArray& a, const MlxArray& indices, int32_t axis);
Handle take_along_axis(const MlxArray& a, const MlxArray& indices, int32_t axis);
Handle put_along_axis(
    const MlxArray& a, const MlxArray& indices, const MlxArray& values, int32_t axis);
Handle select(const MlxArray& condition, const MlxArray& a, const MlxArray& b);
Handle argmax(const MlxArray& a, int32_t axis, bool keepdims);
Handle argsort(const MlxArray& a, int32_t axis);
Handle sort(const MlxArray& a, int32_t axis);
Handle cumsum(const MlxArray& a, int32_t axis);
Handle stop_gradient(const MlxArray& a);

// Random numbers.
void random_seed(uint64_t seed);
Handle random_key(uint64_t seed);
Handle random_split(const MlxArray& key, int32_t count);
Handle random_uniform(float low, float high, Ints shape, Dtype dtype, const MlxArray* key);
Handle random_normal(Ints shape, Dtype dtype, const MlxArray* key);
Handle random_randint(int32_t low, int32_t high, Ints shape, const MlxArray* key);
Handle random_categorical(const MlxArray& logits, int32_t axis, const MlxArray* key);

/** Whether this thread is running a function that `compile` traces. */
bool tracing();

ListHandle composition(const MlxArray& array);
rust::Vec<GraphNode> graph_nodes(const ArrayList& arrays);
rust::Vec<LaunchPlan> dispatches(const MlxArray& array, uint32_t max_threads);

// Conversions that all files of the bridge share.

/** The stream or device on which this thread's ops run. */
mx::StreamOrDevice here();
mx::Dtype to_mlx(Dtype dtype);

/**
 * Throws if an array of this shape would be larger than memory. MLX's allocator would return null,
 * and MLX would write to it.
 */
void require_memory(const char* op, Ints shape, mx::Dtype dtype);

/** Passes a result to Rust that shares the memory of another array. */
inline Handle view(mx::array array) {
  return std::make_unique<mx::array>(std::move(array));
}

/** Passes a result to Rust, or throws if it is larger than memory. */
inline Handle handle(mx::array array) {
  const auto& shape = array.shape();
  require_memory("array", {shape.begin(), shape.size()}, array.dtype());
  return view(std::move(array));
}

inline ListHandle handle(ArrayList list) {
  return std::make_unique<ArrayList>(std::move(list));
}

template <typename T>
inline std::optional<T> optional(const T* value) {
  return value ? std::optional<T>(*value) : std::nullopt;
}

inline mx::Shape to_shape(Ints dims) {
  return mx::Shape(dims.begin(), dims.end());
}

inline std::vector<int> to_ints(Ints values) {
  return std::vector<int>(values.begin(), values.end());
}

} // namespace mlx_primitives::bridge
