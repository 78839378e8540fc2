#include "runtime/primitive.h"

#include <sys/mman.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <stdexcept>

#include "runtime/batch.h"
#include "runtime/contiguous.h"
#include "runtime/encode.h"
#include "runtime/encoder.h"
#include "runtime/node.h"
#include "runtime/process.h"

namespace mlx_primitives {

thread_local int Differentiating::functions = 0;

namespace {

constexpr size_t line = 64;
constexpr size_t page = 4096;
constexpr uintptr_t large_page = 2 << 20;
/** Arrays with at least this number of bytes begin at a cache line boundary. */
constexpr size_t aligned_array = 8 * page;
/** Arrays with at least this number of bytes begin at a page boundary and use large pages. */
constexpr size_t large_array = 4 * large_page;

/**
 * Asks the system for large pages, which cause far fewer page faults. MLX's CPU allocator returns
 * large buffers to the system, so every output gets new pages. The call is only a hint, so errors
 * are ignored.
 */
void prefer_large_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  auto start = (reinterpret_cast<uintptr_t>(data) + large_page - 1) / large_page * large_page;
  auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / large_page * large_page;
  if (start < end) {
    madvise(reinterpret_cast<void*>(start), end - start, MADV_HUGEPAGE);
  }
#endif
}

/**
 * Whether an evaluated input is held only by these outputs. Each output lists all inputs or none.
 */
bool only_held_by(const Arrays& outputs, const mx::array& input) {
  auto holders = node_of(input).use_count() - 1; // one holder is the temporary result
  auto listing = std::count_if(
      outputs.begin(), outputs.end(), [](auto& out) { return !out.inputs().empty(); });
  return holders == listing && input.data_shared_ptr().use_count() == 1;
}

} // namespace

bool FusedPrimitive::prepare(const Arrays& inputs, Arrays& outputs) const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!takes_strides(i) && !inputs[i].flags().row_contiguous) {
      refuse(
          name(), "expected input ", i, " to be row-contiguous at evaluation, got other strides");
    }
  }
  auto* batch = updates() > 0 ? Batch::current() : nullptr;
  bool any = false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool updated = i < updates();
    auto candidates = updated  ? std::vector<size_t>{i}
                      : i == 0 ? donors(inputs)
                               : std::vector<size_t>();
    const mx::array* donor = nullptr;
    for (size_t input : candidates) {
      bool fits = inputs[input].itemsize() == outputs[i].itemsize();
      auto free = [&](const mx::array& x) {
        return x.is_donatable() ||
               (updated && (only_held_by(outputs, x) || (batch && batch->takes_over(x))));
      };
      if (!donor && fits && free(inputs[input])) {
        donor = &inputs[input];
      }
    }
    if (donor) {
      outputs[i].copy_shared_buffer(*donor);
    } else {
      allocate(outputs[i]);
      lay_out(outputs[i]);
    }
    if (updated && batch) {
      batch->updated(outputs[i]);
    }
    any = any || outputs[i].size() > 0;
  }
  return any;
}

void FusedPrimitive::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  if (simulating()) {
    eval_gpu(inputs, outputs);
  } else if (prepare(inputs, outputs)) {
    queue_on_cpu(inputs, outputs);
  }
}

void FusedPrimitive::eval_gpu(const Arrays& inputs, Arrays& outputs) {
  if (prepare(inputs, outputs)) {
    encode(outputs[0].primitive_ptr(), inputs, outputs, [&](uint32_t max_threads) {
      return dispatches(inputs, outputs, max_threads);
    });
  }
}

void FusedPrimitive::queue_on_cpu(const Arrays& inputs, Arrays& outputs) {
  queue(stream(), cpu_call(inputs, outputs));
}

bool FusedPrimitive::in_place(const mx::array& x, const mx::array& out) const {
  bool evaluated = x.data_shared_ptr() && out.data_shared_ptr();
  return evaluated ? x.buffer().ptr() == out.buffer().ptr() : x.itemsize() == out.itemsize();
}

mx::Dtype read_as(mx::Dtype own, mx::Dtype dtype, mx::Stream s) {
  bool halves = own == mx::float16 || own == mx::bfloat16;
  bool kept = halves && dtype == mx::float32 && s.device == mx::Device::cpu && !simulating();
  return kept ? own : dtype;
}

void refuse_parts(const char* op, std::initializer_list<Part> parts) {
  std::ostringstream text;
  text << "[" << op << "] ";
  for (const auto& part : parts) {
    part.write(text);
  }
  throw std::invalid_argument(text.str());
}

void refuse_elsewhere(const char* op) {
  refuse(op, "only CPUs have a kernel for this, and its stream is a GPU's");
}

Cost FusedPrimitive::cost(const Arrays& inputs, const Arrays& outputs) {
  Cost cost{0, 0};
  std::set<std::uintptr_t> known;
  for (auto* arrays : {&inputs, &outputs}) {
    for (const auto& array : *arrays) {
      cost.device_bytes += array.nbytes();
      known.insert(array.id());
    }
  }
  if (std::all_of(outputs.begin(), outputs.end(), [](auto& out) { return out.size() == 0; })) {
    return cost;
  }
  if (cpu_alone(inputs)) {
    cost.dispatches = 1;
    return cost;
  }
  for (const auto& dispatch : dispatches(inputs, outputs, MAX_THREADS)) {
    cost.dispatches += 1;
    for (const auto& binding : dispatch.bindings) {
      bool passing = binding.array && !binding.array->has_primitive() && binding.written;
      if (passing && known.insert(binding.array->id()).second) {
        cost.device_bytes += 2 * binding.array->nbytes();
      }
    }
  }
  return cost;
}

float rounded(float value, mx::Dtype dtype) {
  if (dtype == mx::float16) {
    return static_cast<float>(static_cast<mx::float16_t>(value));
  }
  return dtype == mx::bfloat16 ? static_cast<float>(static_cast<mx::bfloat16_t>(value)) : value;
}

Arrays composition(const mx::array& ours) {
  auto* fused = ours.has_primitive() ? dynamic_cast<FusedPrimitive*>(&ours.primitive()) : nullptr;
  if (!fused) {
    refuse("composition", "expected a lazy result of one of our ops, got another array");
  }
  return fused->compose(ours.inputs());
}

auto ComposedPrimitive::partial(const Arrays& inputs, const std::vector<int>& argnums) {
  return [this, inputs, argnums](const Arrays& arguments) {
    auto all = inputs;
    for (size_t i = 0; i < argnums.size(); ++i) {
      all[argnums[i]] = arguments[i];
    }
    return differentiable(all);
  };
}

namespace {
Arrays named(const Arrays& inputs, const std::vector<int>& argnums) {
  Arrays arguments;
  for (int argnum : argnums) {
    arguments.push_back(inputs[argnum]);
  }
  return arguments;
}
} // namespace

Arrays ComposedPrimitive::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays&) {
  return mx::vjp(partial(primals, argnums), named(primals, argnums), cotangents).second;
}

Arrays ComposedPrimitive::jvp(
    const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) {
  return mx::jvp(partial(primals, argnums), named(primals, argnums), tangents).second;
}

std::pair<Arrays, std::vector<int>> ComposedPrimitive::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  auto function = [this](const Arrays& arguments) { return compose(arguments); };
  auto outputs = mx::vmap(function, axes)(inputs);
  std::vector<int> out_axes(outputs.size(), 0);
  return {std::move(outputs), std::move(out_axes)};
}

void require_kernel_dtype(const char* op, mx::Dtype dtype) {
  if (dtype != mx::float32 && dtype != mx::float16 && dtype != mx::bfloat16) {
    refuse(op, "expected float32, float16 or bfloat16, got ", dtype);
  }
}

void require_last_axis(const char* op, const mx::array& x) {
  if (x.ndim() == 0) {
    refuse(op, "expected an array of rank 1 or more, got a scalar");
  }
  if (x.shape(-1) == 0) {
    refuse(op, "expected a last axis of at least one element, got shape ", x.shape());
  }
}

bool known_row_contiguous(const mx::array& x) {
  if (!x.has_primitive()) {
    // A placeholder in a compiled function has no data, so its layout is unknown.
    return x.data_shared_ptr() != nullptr && x.flags().row_contiguous;
  }
  if (auto* ours = dynamic_cast<FusedPrimitive*>(&x.primitive())) {
    return !ours->lays_out(x);
  }
  bool shaped = view_kind(x.primitive()) == View::of_rows;
  return shaped && known_row_contiguous(x.inputs()[0]);
}

mx::array row_contiguous(const mx::array& x, mx::Stream s) {
  return known_row_contiguous(x) ? x : contiguous(x, s);
}

Memory allocate(size_t bytes) {
  auto memory = mx::allocator::malloc(bytes);
  auto buffer = buffer_of(memory);
  if (!buffer.ptr() && bytes > 0) {
    throw std::runtime_error("[allocate] no memory for " + std::to_string(bytes) + " bytes");
  }
  // On CUDA, raw_ptr would move the memory to the CPU, so skip this hint.
  if (bytes >= large_array && !has_device_memory()) {
    prefer_large_pages(buffer.raw_ptr(), bytes);
  }
  return memory;
}

void allocate(mx::array& out) {
  // Buffers for a GPU already begin at a page boundary.
  static const bool for_gpu = mx::is_available(mx::Device::gpu);
  if (for_gpu || out.nbytes() < aligned_array) {
    out.set_data(allocate(out.nbytes()));
    return;
  }
  // MLX's CPU buffers begin 8 bytes after a multiple of 16 (large ones 8 or 24 bytes after a cache
  // line boundary). In such a buffer, every load or store of 64 bytes accesses two cache lines, and
  // stores cannot bypass the cache. In measurements of large arrays, loads stalled if the output
  // began further into its page than the inputs, most likely because of earlier stores with the
  // same offset within a page.
  auto boundary = out.nbytes() < large_array ? line : page;
  out.set_data(allocate(out.nbytes() + boundary));
  auto beyond = reinterpret_cast<uintptr_t>(out.data<char>()) % boundary;
  auto elements = static_cast<int64_t>((boundary - beyond) % boundary / out.itemsize());
  mx::Strides strides = out.strides();
  out.copy_shared_buffer(out, strides, out.flags(), out.data_size(), elements);
}

mx::array batch_first(const mx::array& x, int axis, int size, mx::Stream s) {
  if (axis >= 0) {
    return mx::moveaxis(x, axis, 0, s);
  }
  auto shape = x.shape();
  shape.insert(shape.begin(), size);
  return mx::broadcast_to(x, shape, s);
}

int batch_size(const Arrays& inputs, const std::vector<int>& axes) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (axes[i] >= 0) {
      return inputs[i].shape(axes[i]);
    }
  }
  throw std::invalid_argument("[vmap] expected at least one mapped input, got none");
}

mx::array entry_by_entry(
    const Arrays& inputs,
    const std::vector<int>& axes,
    const std::function<mx::array(const Arrays&)>& run,
    mx::Stream s) {
  Arrays entries;
  for (int entry = 0; entry < batch_size(inputs, axes); ++entry) {
    auto taken = inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (axes[i] >= 0) {
        taken[i] = mx::take(inputs[i], entry, axes[i], s);
      }
    }
    entries.push_back(run(taken));
  }
  return mx::stack(entries, 0, s);
}

} // namespace mlx_primitives
