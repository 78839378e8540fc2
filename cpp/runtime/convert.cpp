#include "runtime/convert.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "mlx/backend/common/utils.h"
#include "mlx/dtype_utils.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "runtime/batch.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {

/** Elements and how they lie: the axes of more than one element, from the outermost. */
struct Source {
  struct Axis {
    int64_t size;
    int64_t stride; // in elements
  };
  const uint8_t* data;
  std::vector<Axis> axes; // at least one
  int64_t rows = 1;       // the elements of all axes but the last

  /** A number of elements that lie behind one another. */
  Source(const uint8_t* data_, size_t count) : data(data_) {
    axes.push_back({static_cast<int64_t>(count), 1});
  }

  /** The elements of an array. Two axes that one stride goes through are one. */
  explicit Source(const mx::array& x) : data(bytes(x)) {
    for (size_t i = 0; i < x.ndim(); ++i) {
      Axis axis = {x.shape()[i], x.strides()[i]};
      if (!axes.empty() && axes.back().stride == axis.stride * axis.size) {
        axes.back() = {axes.back().size * axis.size, axis.stride};
      } else if (axis.size != 1) {
        axes.push_back(axis);
      }
    }
    if (axes.empty()) {
      axes.push_back({1, 1});
    }
    for (size_t i = 0; i + 1 < axes.size(); ++i) {
      rows *= axes[i].size;
    }
  }
};

/** The bytes of a block of elements of the largest type. */
constexpr int64_t BLOCK = 512;
constexpr int64_t BLOCK_BYTES = BLOCK * sizeof(mx::complex64_t);

/** Converts a number of elements that lie behind one another. */
using ConvertBlock = void (*)(const uint8_t* from, uint8_t* to, int64_t count);

/** Copies elements of a type of some size, `stride` bytes from one to the next. */
template <typename Word>
void gather(const uint8_t* from, int64_t stride, uint8_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * sizeof(Word), from + i * stride, sizeof(Word));
  }
}

void gather(const uint8_t* from, int64_t stride, uint8_t* to, int64_t count, int64_t size) {
  if (stride == size) {
    std::memcpy(to, from, count * size);
  } else if (size == 1) {
    gather<uint8_t>(from, stride, to, count);
  } else if (size == 2) {
    gather<uint16_t>(from, stride, to, count);
  } else if (size == 4) {
    gather<uint32_t>(from, stride, to, count);
  } else {
    gather<uint64_t>(from, stride, to, count);
  }
}

/**
 * Converts elements in blocks that the processor's cache holds. A block is read before it is
 * written, so that elements of one size can be converted where they lie. Only `convert` is compiled
 * for each pair of types; the sizes are those of its types in bytes.
 */
void convert_elements(
    const Source& source, int64_t size, uint8_t* to, int64_t to_size, ConvertBlock convert) {
  alignas(64) uint8_t read[BLOCK_BYTES];
  alignas(64) uint8_t written[BLOCK_BYTES];
  int64_t filled = 0;
  auto flush = [&] {
    convert(read, written, filled);
    std::memcpy(to, written, filled * to_size);
    to += filled * to_size;
    filled = 0;
  };
  const auto [length, stride] = source.axes.back();
  const size_t outer = source.axes.size() - 1;
  std::vector<int64_t> index(outer);
  auto* row = source.data;
  for (int64_t number = 0; number < source.rows; ++number) {
    for (int64_t at = 0; at < length;) {
      int64_t count = std::min(BLOCK - filled, length - at);
      gather(row + at * stride * size, stride * size, read + filled * size, count, size);
      at += count;
      filled += count;
      if (filled == BLOCK) {
        flush();
      }
    }
    for (size_t axis = outer; axis-- > 0;) {
      const auto [extent, step] = source.axes[axis];
      row += step * size;
      if (++index[axis] < extent) {
        break;
      }
      row -= extent * step * size;
      index[axis] = 0;
    }
  }
  flush();
}

/** Converts elements as MLX does. */
template <typename From, typename To>
void convert_block(const uint8_t* from, uint8_t* to, int64_t count) {
  auto* read = reinterpret_cast<const From*>(from);
  auto* written = reinterpret_cast<To*>(to);
  for (int64_t i = 0; i < count; ++i) {
    written[i] = static_cast<To>(read[i]);
  }
}

void convert_cpu(const Source& source, mx::Dtype from, uint8_t* to, mx::Dtype dtype) {
  mx::dispatch_all_types(from, [&](auto from_type) {
    using From = MLX_GET_TYPE(from_type);
    mx::dispatch_all_types(dtype, [&](auto to_type) {
      using To = MLX_GET_TYPE(to_type);
      convert_elements(source, sizeof(From), to, sizeof(To), convert_block<From, To>);
    });
  });
}

template <typename From>
void clamp_block(const uint8_t* from, uint8_t* to, int64_t count) {
  using Limits = std::numeric_limits<int32_t>;
  auto* read = reinterpret_cast<const From*>(from);
  auto* written = reinterpret_cast<int32_t*>(to);
  for (int64_t i = 0; i < count; ++i) {
    if (std::cmp_less(read[i], Limits::min())) {
      written[i] = Limits::min();
    } else if (std::cmp_greater(read[i], Limits::max())) {
      written[i] = Limits::max();
    } else {
      written[i] = static_cast<int32_t>(read[i]);
    }
  }
}

void clamp_cpu(const Source& source, mx::Dtype from, uint8_t* to) {
  mx::dispatch_int_types(from, "clamp", [&](auto from_type) {
    using From = MLX_GET_TYPE(from_type);
    convert_elements(source, sizeof(From), to, sizeof(int32_t), clamp_block<From>);
  });
}

/** On a CPU only, where MLX's own conversion cannot report that there is no memory. */
class Convert : public mx::UnaryPrimitive {
 public:
  Convert(mx::Stream stream, mx::Dtype dtype, bool clamps)
      : mx::UnaryPrimitive(stream), dtype_(dtype), clamps_(clamps) {}

  void eval_cpu(const Arrays& inputs, mx::array& out) override {
    const auto& x = inputs[0];
    bool dense = x.flags().contiguous; // then the result lies as x does
    if (!dense) {
      allocate(out);
    } else if (mx::is_donatable(x, out)) {
      out.copy_shared_buffer(x);
    } else {
      auto data = allocate(x.data_size() * out.itemsize());
      out.set_data(std::move(data), x.data_size(), x.strides(), x.flags());
    }
    if (out.size() == 0) {
      return;
    }
    queue(
        stream(),
        [source = dense ? Source(bytes(x), x.data_size()) : Source(x),
         from = x.dtype(),
         to = bytes(out),
         dtype = dtype_,
         clamps = clamps_] {
          clamps ? clamp_cpu(source, from, to) : convert_cpu(source, from, to, dtype);
        });
  }

  void eval_gpu(const Arrays&, mx::array&) override {
    refuse(name(), "expected a stream of the CPU, got one of a GPU");
  }

  Arrays jvp(const Arrays&, const Arrays& tangents, const std::vector<int>&) override {
    return {convert(tangents[0], dtype_, stream())};
  }

  Arrays vjp(
      const Arrays& primals,
      const Arrays& cotangents,
      const std::vector<int>&,
      const Arrays&) override {
    return {convert(cotangents[0], primals[0].dtype(), stream())};
  }

  std::pair<Arrays, std::vector<int>> vmap(
      const Arrays& inputs, const std::vector<int>& axes) override {
    auto primitive = std::make_shared<Convert>(stream(), dtype_, clamps_);
    return {{mx::array(inputs[0].shape(), dtype_, std::move(primitive), inputs)}, axes};
  }

  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& convert = static_cast<const Convert&>(other);
    return dtype_ == convert.dtype_ && clamps_ == convert.clamps_;
  }

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    return {inputs[0].shape()};
  }

  const char* name() const override {
    return "AsType";
  }

 private:
  mx::Dtype dtype_;
  bool clamps_;
};

} // namespace

mx::array convert(const mx::array& x, mx::Dtype dtype, mx::Stream s) {
  if (s.device != mx::Device::cpu || x.dtype() == dtype) {
    return mx::astype(x, dtype, s);
  }
  return mx::array(x.shape(), dtype, std::make_shared<Convert>(s, dtype, false), {x});
}

mx::array clamp_to_int32(const mx::array& x, mx::Stream s) {
  auto dtype = x.dtype();
  if (mx::size_of(dtype) < 4 || dtype == mx::int32) {
    return convert(x, mx::int32, s);
  }
  if (s.device == mx::Device::cpu) {
    return mx::array(x.shape(), mx::int32, std::make_shared<Convert>(s, mx::int32, true), {x});
  }
  using Limits = std::numeric_limits<int32_t>;
  auto result = mx::minimum(x, mx::array(Limits::max(), dtype), s);
  if (dtype == mx::int64) {
    result = mx::maximum(result, mx::array(Limits::min(), dtype), s);
  }
  return mx::astype(result, mx::int32, s);
}

} // namespace mlx_primitives
