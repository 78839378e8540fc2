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

/** Elements and their layout in memory: the axes with more than one element, outermost first. */
struct Source {
  struct Axis {
    int64_t size;
    int64_t stride; // in elements
  };
  const uint8_t* data;
  std::vector<Axis> axes; // at least one
  int64_t rows = 1;       // the elements of all axes but the last

  /** `count` contiguous elements. */
  Source(const uint8_t* data_, size_t count) : data(data_) {
    axes.push_back({static_cast<int64_t>(count), 1});
  }

  /**
   * The elements of an array. Two axes are merged if a single stride visits the elements of both.
   */
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

/** The number of elements of a block, which fits the processor's cache. */
constexpr int64_t BLOCK = 512;
constexpr int64_t BLOCK_BYTES = BLOCK * sizeof(mx::complex64_t);

/** Converts up to `BLOCK` contiguous elements. */
using ConvertBlock = void (*)(const uint8_t* from, uint8_t* to, int64_t count);

/**
 * Converts elements of the size of a word in blocks. A block is read before it is written, so
 * elements can be converted in place if both types have the same size. Only `convert` is compiled
 * for each pair of types. `size` is the size of a converted element in bytes.
 */
template <typename Word>
void convert_words(const Source& source, uint8_t* to, int64_t size, ConvertBlock convert) {
  alignas(64) uint8_t read[BLOCK * sizeof(Word)];
  alignas(64) uint8_t written[BLOCK_BYTES];
  int64_t filled = 0;
  auto flush = [&] {
    convert(read, written, filled);
    std::memcpy(to, written, filled * size);
    to += filled * size;
    filled = 0;
  };
  const auto [length, stride] = source.axes.back();
  const size_t outer = source.axes.size() - 1;
  std::vector<int64_t> index(outer);
  auto* row = source.data;
  for (int64_t number = 0; number < source.rows; ++number) {
    for (int64_t at = 0; at < length;) {
      int64_t count = std::min(BLOCK - filled, length - at);
      const uint8_t* from = row + at * stride * static_cast<int64_t>(sizeof(Word));
      if (stride == 1) {
        std::memcpy(read + filled * sizeof(Word), from, count * sizeof(Word));
      } else {
        for (int64_t i = 0; i < count; ++i) {
          std::memcpy(
              read + (filled + i) * sizeof(Word),
              from + i * stride * static_cast<int64_t>(sizeof(Word)),
              sizeof(Word));
        }
      }
      at += count;
      filled += count;
      if (filled == BLOCK) {
        flush();
      }
    }
    for (size_t axis = outer; axis-- > 0;) {
      const auto [extent, step] = source.axes[axis];
      row += step * static_cast<int64_t>(sizeof(Word));
      if (++index[axis] < extent) {
        break;
      }
      row -= extent * step * static_cast<int64_t>(sizeof(Word));
      index[axis] = 0;
    }
  }
  flush();
}

/**
 * Converts each of `count` elements with `one`. For a whole block, the compiler knows the length.
 */
template <typename From, typename To, typename One>
void convert_each(const From* __restrict read, To* __restrict written, int64_t count, One one) {
  if (count == BLOCK) {
    for (int64_t i = 0; i < BLOCK; ++i) {
      written[i] = one(read[i]);
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    written[i] = one(read[i]);
  }
}

/** Converts all elements with `one`. */
template <typename From, typename To, typename One>
void convert_elements(const Source& source, uint8_t* to, One) {
  ConvertBlock convert = [](const uint8_t* from, uint8_t* to, int64_t count) {
    auto* read = reinterpret_cast<const From*>(from);
    convert_each(read, reinterpret_cast<To*>(to), count, One{});
  };
  if constexpr (sizeof(From) == 1) {
    convert_words<uint8_t>(source, to, sizeof(To), convert);
  } else if constexpr (sizeof(From) == 2) {
    convert_words<uint16_t>(source, to, sizeof(To), convert);
  } else if constexpr (sizeof(From) == 4) {
    convert_words<uint32_t>(source, to, sizeof(To), convert);
  } else {
    static_assert(sizeof(From) == sizeof(uint64_t));
    convert_words<uint64_t>(source, to, sizeof(To), convert);
  }
}

/** Converts elements with the same results as MLX. */
void convert_cpu(const Source& source, mx::Dtype from, uint8_t* to, mx::Dtype dtype) {
  mx::dispatch_all_types(from, [&](auto from_type) {
    using From = MLX_GET_TYPE(from_type);
    mx::dispatch_all_types(dtype, [&](auto to_type) {
      using To = MLX_GET_TYPE(to_type);
      convert_elements<From, To>(source, to, [](const From& x) { return static_cast<To>(x); });
    });
  });
}

void clamp_cpu(const Source& source, mx::Dtype from, uint8_t* to) {
  mx::dispatch_int_types(from, "clamp", [&](auto from_type) {
    using From = MLX_GET_TYPE(from_type);
    using Limits = std::numeric_limits<int32_t>;
    convert_elements<From, int32_t>(source, to, [](From x) {
      if (std::cmp_less(x, Limits::min())) {
        return Limits::min();
      }
      return std::cmp_greater(x, Limits::max()) ? Limits::max() : static_cast<int32_t>(x);
    });
  });
}

/** Used only on a CPU, where MLX's conversion cannot report that memory has run out. */
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
