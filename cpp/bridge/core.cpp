#include "bridge/core.h"

#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "mlx-primitives/src/ffi/mod.rs.h"
#include "mlx/scheduler.h"
#include "mlx/utils.h"
#include "mlx/version.h"
#include "runtime/contiguous.h"
#include "runtime/encoder.h"
#include "runtime/evaluate.h"
#include "runtime/metallib.h"
#include "runtime/primitive.h"
#include "runtime/process.h"

#define MLX_PRIMITIVES_TEXT(x) #x
#define MLX_PRIMITIVES_DOTTED(a, b, c) \
  MLX_PRIMITIVES_TEXT(a) "." MLX_PRIMITIVES_TEXT(b) "." MLX_PRIMITIVES_TEXT(c)

namespace mlx_primitives::bridge {

static_assert(sizeof(mx::ShapeElem) == sizeof(int32_t));

namespace {

// `with_device` and `with_stream` set this, because MLX's default device is a global without a
// lock.
thread_local std::optional<Place> place_of_thread;

constexpr mx::Dtype dtypes[] = {
    mx::bool_,
    mx::uint8,
    mx::uint16,
    mx::uint32,
    mx::uint64,
    mx::int8,
    mx::int16,
    mx::int32,
    mx::int64,
    mx::float16,
    mx::float32,
    mx::float64,
    mx::bfloat16,
    mx::complex64};

// `from_mlx` casts a value of MLX's enum to the bridge's enum, so both must have the same values.
static_assert(static_cast<int>(Dtype::Bool) == static_cast<int>(mx::Dtype::Val::bool_));
static_assert(static_cast<int>(Dtype::Int32) == static_cast<int>(mx::Dtype::Val::int32));
static_assert(static_cast<int>(Dtype::Float16) == static_cast<int>(mx::Dtype::Val::float16));
static_assert(static_cast<int>(Dtype::Float32) == static_cast<int>(mx::Dtype::Val::float32));
static_assert(static_cast<int>(Dtype::Bfloat16) == static_cast<int>(mx::Dtype::Val::bfloat16));
static_assert(static_cast<int>(Dtype::Complex64) == static_cast<int>(mx::Dtype::Val::complex64));

mx::Device device_of(const Place& place) {
  return place.gpu ? mx::Device::gpu : mx::Device::cpu;
}

mx::StreamOrDevice resolve(const Place& place) {
  if (!place.explicit_device) {
    return {};
  }
  if (place.stream >= 0) {
    return mx::Stream(place.stream, device_of(place));
  }
  return device_of(place);
}

} // namespace

mx::StreamOrDevice here() {
  prepare();
  return place_of_thread ? resolve(*place_of_thread) : mx::StreamOrDevice{};
}

mx::Dtype to_mlx(Dtype dtype) {
  auto index = static_cast<size_t>(dtype);
  if (index >= std::size(dtypes)) {
    throw std::invalid_argument("[dtype] expected one of MLX's dtypes");
  }
  return dtypes[index];
}

/** The memory limit that MLX chose for this machine, read at the first call. */
static double machine_memory() {
  static const double limit = static_cast<double>(mx::get_memory_limit());
  return limit;
}

void require_memory(const char* op, Ints shape, mx::Dtype dtype) {
  double limit = machine_memory();
  double bytes = mx::size_of(dtype);
  for (auto dim : shape) {
    bytes *= dim;
  }
  if (bytes > limit) {
    refuse(op, "expected an array of at most ", limit, " bytes, got ", bytes);
  }
}

rust::String header_version() {
  return MLX_PRIMITIVES_DOTTED(MLX_VERSION_MAJOR, MLX_VERSION_MINOR, MLX_VERSION_PATCH);
}

rust::String library_version() {
  return mx::version();
}

/** Refuses widths below 1, with which evaluations never end. MLX reads text without digits as 0. */
static void check_width() {
  static const char* width = std::getenv("MLX_BFS_MAX_WIDTH");
  static const bool usable = width == nullptr || std::atoi(width) > 0;
  if (!usable) {
    throw std::invalid_argument(
        "[MLX_BFS_MAX_WIDTH] expected a whole number from 1, got '" +
        std::string(width).substr(0, 100) + "'");
  }
}

void check_version() {
  require_version();
}

/** Prepares MLX before each array that is not made from other arrays. */
static void begin() {
  prepare();
  check_width();
}

bool gpu_available() {
  return mx::is_available(mx::Device::gpu);
}

bool default_is_gpu() {
  return mx::default_device() == mx::Device::gpu;
}

rust::String device_name(bool gpu) {
  const auto& info = mx::device_info(gpu ? mx::Device::gpu : mx::Device::cpu);
  auto found = info.find("device_name");
  if (found == info.end() || !std::holds_alternative<std::string>(found->second)) {
    return "";
  }
  return std::get<std::string>(found->second);
}

size_t recommended_working_set() {
  if (!gpu_available()) {
    return 0;
  }
  const auto& info = mx::device_info(mx::Device::gpu);
  auto found = info.find("max_recommended_working_set_size");
  if (found == info.end() || !std::holds_alternative<size_t>(found->second)) {
    return 0;
  }
  return std::get<size_t>(found->second);
}

rust::String kernels_origin() {
  return metallib_description();
}

rust::Vec<MetalKernel> metal_kernels() {
  rust::Vec<MetalKernel> all;
  for (const auto& [stem, name] : mlx_primitives::metal_kernels()) {
    all.push_back(MetalKernel{stem, name});
  }
  return all;
}

uint32_t metal_kernel_threads(const MetalKernel& kernel) {
  prepare();
  return mlx_primitives::metal_kernel_threads({std::string(kernel.stem), std::string(kernel.name)});
}

Place current_place() {
  return place_of_thread.value_or(Place{false, false, -1});
}

void set_place(Place place) {
  place_of_thread = place;
}

int32_t new_stream(bool gpu) {
  prepare();
  return mx::new_stream(gpu ? mx::Device::gpu : mx::Device::cpu).index;
}

void synchronize(Place place) {
  prepare();
  mlx_primitives::synchronize(mx::to_stream(resolve(place)));
}

int32_t active_tasks() {
  prepare();
  return mx::scheduler::n_active_tasks();
}

void clear_streams() {
  end_streams();
}

size_t active_memory() {
  return mx::get_active_memory();
}

size_t peak_memory() {
  return mx::get_peak_memory();
}

size_t cache_memory() {
  return mx::get_cache_memory();
}

void reset_peak_memory() {
  mx::reset_peak_memory();
}

void clear_cache() {
  prepare();
  Inside inside;
  mx::clear_cache();
}

size_t set_cache_limit(size_t bytes) {
  prepare();
  Inside inside;
  return mx::set_cache_limit(bytes);
}

size_t memory_limit() {
  return mx::get_memory_limit();
}

size_t set_memory_limit(size_t bytes) {
  machine_memory();
  return mx::set_memory_limit(bytes);
}

size_t set_wired_limit(size_t bytes) {
  return mx::set_wired_limit(bytes);
}

void prefetch(const ArrayList& arrays) {
  prefetch_cuda(arrays);
}

ListHandle new_list() {
  return std::make_unique<ArrayList>();
}

void push(ArrayList& list, const MlxArray& array) {
  list.push_back(array);
}

Handle share(const MlxArray& array) {
  return view(array);
}

rust::Slice<const int32_t> shape(const MlxArray& array) {
  const auto& dims = array.shape();
  return {dims.begin(), dims.size()};
}

rust::Vec<int64_t> strides(const MlxArray& array) {
  rust::Vec<int64_t> result;
  for (auto stride : array.strides()) {
    result.push_back(stride);
  }
  return result;
}

Dtype dtype(const MlxArray& array) {
  return static_cast<Dtype>(array.dtype().val());
}

bool is_scheduled(const MlxArray& array) {
  return array.status() != mx::array::Status::unscheduled;
}

bool is_row_contiguous(const MlxArray& array) {
  return array.flags().row_contiguous;
}

rust::String primitive_name(const MlxArray& array) {
  return array.has_primitive() ? array.primitive().name() : "";
}

rust::String to_text(const MlxArray& array) {
  // Write booleans as True and False, as MLX's Python package does.
  static const bool python_style = mx::get_global_formatter().capitalize_bool = true;
  (void)python_style;
  std::ostringstream text;
  text << array;
  return text.str();
}

ListHandle composition(const MlxArray& array) {
  prepare();
  return handle(mlx_primitives::composition(array));
}

bool is_set(const Signal& signal) {
  return signal.reached.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

bool finished(const MlxArray& array) {
  return array.is_available();
}

void eval(const ArrayList& arrays) {
  evaluate(arrays);
}

void async_eval(const ArrayList& arrays) {
  evaluate_async(arrays);
}

Handle contents(const MlxArray& array) {
  auto result = array;
  evaluate({result});
  if (!result.flags().row_contiguous) {
    result = mlx_primitives::contiguous(result, mx::to_stream(here()));
    evaluate({result});
  }
  return handle(std::move(result));
}

Handle detached(Handle array) {
  evaluate({*array});
  if (!array->is_donatable() || !array->flags().row_contiguous) {
    auto from = contents(*array);
    mx::array copy(allocate(from->nbytes()), from->shape(), from->dtype());
    std::copy_n(data(*from), from->nbytes(), copy.data<uint8_t>());
    return view(std::move(copy));
  }
  mx::array alone(array->shape(), array->dtype(), nullptr, {});
  alone.copy_shared_buffer(*array);
  alone.set_status(mx::array::Status::available);
  return view(std::move(alone));
}

const uint8_t* data(const MlxArray& array) {
  return array.size() ? array.data<uint8_t>() : nullptr;
}

Handle from_bytes(rust::Slice<const uint8_t> bytes, Ints shape, Dtype dtype) {
  begin();
  auto type = to_mlx(dtype);
  size_t elements = 1;
  for (auto dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(elements, static_cast<size_t>(dim), &elements)) {
      throw std::invalid_argument("[array] expected non-negative dimensions that fit in memory");
    }
  }
  if (elements > bytes.size() || elements * mx::size_of(type) != bytes.size()) {
    throw std::invalid_argument("[array] expected as many elements as the shape holds");
  }
  auto dims = to_shape(shape);
  mx::array array(allocate(bytes.size()), std::move(dims), type);
  std::copy_n(bytes.data(), bytes.size(), array.data<uint8_t>());
  return handle(std::move(array));
}

Handle block(size_t bytes) {
  begin();
  auto words = bytes / sizeof(uint64_t);
  if (words > std::numeric_limits<mx::ShapeElem>::max()) {
    throw std::invalid_argument("[block] expected at most 16 GiB, got more");
  }
  auto shape = mx::Shape{static_cast<mx::ShapeElem>(words)};
  return handle(mx::array(allocate(words * sizeof(uint64_t)), std::move(shape), mx::uint64));
}

Handle within(const MlxArray& block, size_t offset, Ints shape, Dtype dtype) {
  auto type = to_mlx(dtype);
  size_t bytes = mx::size_of(type);
  for (auto dim : shape) {
    bytes *= dim;
  }
  auto first = static_cast<mx::ShapeElem>(offset / sizeof(uint64_t));
  auto last = static_cast<mx::ShapeElem>((offset + bytes) / sizeof(uint64_t));
  auto words = mx::slice(block, {first}, {last}, here());
  return handle(mx::reshape(mx::view(words, type, here()), to_shape(shape), here()));
}

Handle full(Ints shape, const MlxArray& value) {
  require_memory("full", shape, value.dtype());
  return handle(mx::full(to_shape(shape), value, value.dtype(), here()));
}

Handle arange(double start, double stop, double step, Dtype dtype) {
  begin();
  return handle(mx::arange(start, stop, step, to_mlx(dtype), here()));
}

} // namespace mlx_primitives::bridge
