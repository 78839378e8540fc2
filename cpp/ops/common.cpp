#include "ops/common.h"

#include <sys/mman.h>

#include <algorithm>

namespace mlx_primitives {

namespace {

constexpr size_t page = 4096;
constexpr uintptr_t large_page = 2 << 20;
/** Arrays from so many bytes on are laid out with care. */
constexpr size_t large_array = 4 * large_page;

/**
 * MLX's CPU allocator returns large buffers to the system, so each output's pages are new: with
 * large pages they take a fraction of the faults. Only a hint, hence no error.
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

} // namespace

void FusedPrimitive::eval_cpu(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  if (simulating()) {
    eval_gpu(inputs, outputs);
  } else {
    run_on_cpu(inputs, outputs);
  }
}

Cost FusedPrimitive::cost(
    const std::vector<mx::array>& inputs, const std::vector<mx::array>& outputs) const {
  Cost cost{1, 0};
  for (auto* arrays : {&inputs, &outputs}) {
    for (const auto& array : *arrays) {
      cost.device_bytes += array.nbytes();
    }
  }
  return cost;
}

std::vector<mx::array> composition(const mx::array& ours) {
  auto* fused = ours.has_primitive() ? dynamic_cast<FusedPrimitive*>(&ours.primitive()) : nullptr;
  if (!fused) {
    refuse("composition", "expected a lazy result of one of our ops, got another array");
  }
  return fused->compose(ours.inputs());
}

auto ComposedPrimitive::partial(
    const std::vector<mx::array>& inputs, const std::vector<int>& argnums) {
  return [this, inputs, argnums](const std::vector<mx::array>& arguments) {
    auto all = inputs;
    for (size_t i = 0; i < argnums.size(); ++i) {
      all[argnums[i]] = arguments[i];
    }
    return compose(all);
  };
}

namespace {
std::vector<mx::array> named(
    const std::vector<mx::array>& inputs, const std::vector<int>& argnums) {
  std::vector<mx::array> arguments;
  for (int argnum : argnums) {
    arguments.push_back(inputs[argnum]);
  }
  return arguments;
}
} // namespace

std::vector<mx::array> ComposedPrimitive::vjp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& cotangents,
    const std::vector<int>& argnums,
    const std::vector<mx::array>&) {
  return mx::vjp(partial(primals, argnums), named(primals, argnums), cotangents).second;
}

std::vector<mx::array> ComposedPrimitive::jvp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& tangents,
    const std::vector<int>& argnums) {
  return mx::jvp(partial(primals, argnums), named(primals, argnums), tangents).second;
}

std::pair<std::vector<mx::array>, std::vector<int>> ComposedPrimitive::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  auto function = [this](const std::vector<mx::array>& arguments) { return compose(arguments); };
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

mx::array row_contiguous(const mx::array& x, mx::Stream s) {
  // Placeholders of a compiled function have no data: their layout is not known yet.
  bool known = x.has_primitive() ? dynamic_cast<FusedPrimitive*>(&x.primitive()) != nullptr
                                 : x.data_shared_ptr() != nullptr && x.flags().row_contiguous;
  return known ? x : mx::contiguous(x, false, s);
}

void require_row_contiguous(const char* op, const mx::array& x) {
  if (!x.flags().row_contiguous) {
    refuse(op, "expected a row-contiguous input at evaluation, got strides of another layout");
  }
}

mx::allocator::Data allocate(size_t bytes) {
  auto data = mx::allocator::malloc(bytes);
  mx::allocator::Buffer buffer = data.buffer();
  if (!buffer.ptr() && bytes > 0) {
    throw std::runtime_error("[allocate] no memory for " + std::to_string(bytes) + " bytes");
  }
  if (bytes >= large_array) {
    prefer_large_pages(buffer.raw_ptr(), bytes);
  }
  return data;
}

void allocate(mx::array& out) {
  // A GPU's buffers begin at a page.
  static const bool for_gpu = mx::is_available(mx::Device::gpu);
  if (for_gpu || out.nbytes() < large_array) {
    out.set_data(allocate(out.nbytes()));
    return;
  }
  // MLX's large CPU buffers begin 24 bytes beside a page, where no vector can be stored past the
  // caches. At a cache line further on in a page than its inputs, loads were seen to wait, most
  // likely for the last such store, whose address looks the same within a page.
  out.set_data(allocate(out.nbytes() + page));
  auto beyond = reinterpret_cast<uintptr_t>(out.data<char>()) % page;
  auto elements = static_cast<int64_t>((page - beyond) % page / out.itemsize());
  mx::Strides strides = out.strides();
  out.copy_shared_buffer(out, strides, out.flags(), out.data_size(), elements);
}

void donate_or_allocate(const mx::array& x, mx::array& out) {
  if (x.is_donatable() && x.itemsize() == out.itemsize()) {
    out.copy_shared_buffer(x);
  } else {
    allocate(out);
  }
}

void donate_one_or_allocate(const std::vector<mx::array>& inputs, mx::array& out) {
  auto free = std::find_if(
      inputs.begin(), inputs.end(), [](const mx::array& input) { return input.is_donatable(); });
  donate_or_allocate(free == inputs.end() ? inputs.front() : *free, out);
}

mx::array batch_first(const mx::array& x, int axis, int size, mx::Stream s) {
  if (axis >= 0) {
    return mx::moveaxis(x, axis, 0, s);
  }
  auto shape = x.shape();
  shape.insert(shape.begin(), size);
  return mx::broadcast_to(x, shape, s);
}

int batch_size(const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (axes[i] >= 0) {
      return inputs[i].shape(axes[i]);
    }
  }
  throw std::invalid_argument("[vmap] expected at least one mapped input, got none");
}

} // namespace mlx_primitives
