#include "runtime/contiguous.h"

#include <memory>
#include <string_view>
#include <unordered_map>

#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "runtime/batch.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {

/**
 * This primitive is used only on a CPU, where MLX's `Contiguous` cannot report that memory has run
 * out.
 */
class Contiguous : public mx::UnaryPrimitive {
 public:
  using mx::UnaryPrimitive::UnaryPrimitive;

  void eval_cpu(const Arrays& inputs, mx::array& out) override {
    const auto& x = inputs[0];
    constexpr size_t spare = 16384; // a view must not keep much more memory than it needs
    if (x.flags().row_contiguous && x.buffer_size() <= out.nbytes() + spare) {
      return out.copy_shared_buffer(x);
    }
    allocate(out);
    if (out.size() == 0) {
      return;
    }
    queue(
        stream(),
        [from = bytes(x),
         to = bytes(out),
         shape = x.shape(),
         strides = x.strides(),
         size = x.itemsize()] {
          cpu::mlxp_cpu_copy(from, to, shape.data(), strides.data(), shape.size(), size);
        });
  }

  void eval_gpu(const Arrays&, mx::array&) override {
    refuse(name(), "expected a stream of the CPU, got one of a GPU");
  }

  Arrays jvp(const Arrays&, const Arrays& tangents, const std::vector<int>&) override {
    return tangents;
  }

  Arrays vjp(
      const Arrays&, const Arrays& cotangents, const std::vector<int>&, const Arrays&) override {
    return cotangents;
  }

  std::pair<Arrays, std::vector<int>> vmap(
      const Arrays& inputs, const std::vector<int>& axes) override {
    return {{contiguous(inputs[0], stream())}, axes};
  }

  bool is_equivalent(const mx::Primitive&) const override {
    return true;
  }

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    return {inputs[0].shape()};
  }

  const char* name() const override {
    return "Contiguous";
  }
};

/**
 * Maps the name of each primitive to its kind of view. The names are read from sample ops of MLX.
 */
std::unordered_map<std::string_view, View> view_kinds(mx::Stream s) {
  mx::array x({1, 2, 3}, mx::float32, nullptr, {});
  auto name = [](const mx::array& view) { return std::string_view(view.primitive().name()); };
  return {
      {name(mx::broadcast_to(x, {4, 2, 3}, s)), View::always},
      {name(mx::expand_dims(x, 0, s)), View::always},
      {name(mx::slice(x, {0, 0, 0}, {1, 1, 1}, s)), View::always},
      {name(mx::squeeze(x, 0, s)), View::always},
      {name(mx::transpose(x, {0, 2, 1}, s)), View::always},
      {name(mx::flatten(x, 1, 2, s)), View::of_rows},
      {name(mx::reshape(x, {3, 2}, s)), View::of_rows},
      {name(mx::unflatten(x, 2, {3, 1}, s)), View::of_rows},
      {name(mx::contiguous(x, false, s)), View::contiguous}};
}

} // namespace

View view_kind(mx::Primitive& primitive) {
  // The map is never destroyed, because threads may evaluate while the process ends.
  static const auto& kinds = *new auto(view_kinds(primitive.stream()));
  auto found = kinds.find(primitive.name());
  return found == kinds.end() ? View::none : found->second;
}

bool updates_slice(mx::Primitive& primitive) {
  static const std::string_view known = [s = primitive.stream()] {
    mx::array x({2}, mx::float32, nullptr, {}), part({1}, mx::float32, nullptr, {});
    auto updated = mx::slice_update(x, part, mx::Shape{0}, mx::Shape{1}, s);
    return std::string_view(updated.primitive().name());
  }();
  return primitive.name() == known;
}

mx::array contiguous(const mx::array& x, mx::Stream s) {
  if (s.device != mx::Device::cpu) {
    return mx::contiguous(x, false, s);
  }
  return mx::array(x.shape(), x.dtype(), std::make_shared<Contiguous>(s), {x});
}

} // namespace mlx_primitives
