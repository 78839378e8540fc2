#include "ops/lora.h"

#include "../../metal/lora.h"
#include "ops/linear.h"
#include "ops/quantized_transposed.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {
constexpr auto lora_op = "lora_linear";
constexpr size_t BASE = 3; // index of the base's first input

QuantizedWeight packed(const Arrays& arrays, size_t at) {
  auto biases = arrays.size() > at + 2 ? std::optional(arrays[at + 2]) : std::nullopt;
  return {arrays[at], arrays[at + 1], biases};
}
} // namespace

mx::array lora_linear(
    const mx::array& x,
    const LoraBase& base,
    const mx::array& a,
    const mx::array& b,
    float scale,
    mx::StreamOrDevice s_) {
  auto& w = base.arrays.at(0);
  int axis = 0;
  if (base.format) {
    require_quantized(lora_op, packed(base.arrays, 0), *base.format);
    axis = static_cast<int>(int64_t{w.shape(1)} * 32 / base.format->bits);
  } else {
    if (w.ndim() != 2) {
      refuse(lora_op, "expected a matrix of weights, got shape ", w.shape());
    }
    axis = w.shape(1);
  }
  int columns = w.shape(0);
  if (axis == 0) {
    refuse(lora_op, "expected an axis of at least one element, got weights of shape ", w.shape());
  }
  if (x.ndim() == 0 || x.shape(-1) != axis) {
    refuse(lora_op, "expected x of a last axis of ", axis, ", got shape ", x.shape());
  }
  if (a.ndim() != 2 || a.shape(1) != axis) {
    refuse(lora_op, "expected a of shape (rank, ", axis, "), got ", a.shape());
  }
  if (b.shape() != mx::Shape{columns, a.shape(0)}) {
    refuse(lora_op, "expected b of shape (", columns, ", ", a.shape(0), "), got ", b.shape());
  }
  auto dtype = mx::promote_types(x.dtype(), mx::promote_types(a.dtype(), b.dtype()));
  for (auto& array : base.arrays) {
    if (mx::issubdtype(array.dtype(), mx::floating)) {
      dtype = mx::promote_types(dtype, array.dtype());
    } else if (!base.format) {
      refuse(lora_op, "expected floating weights, got ", array.dtype());
    }
  }
  require_kernel_dtype(lora_op, dtype);

  auto s = mx::to_stream(s_);
  Arrays inputs;
  for (auto* array : {&x, &a, &b}) {
    inputs.push_back(row_contiguous(convert(*array, dtype, s), s));
  }
  for (auto& array : base.arrays) {
    bool floating = mx::issubdtype(array.dtype(), mx::floating);
    auto type = base.format && floating ? read_as(array.dtype(), dtype, s) : dtype;
    inputs.push_back(row_contiguous(floating ? convert(array, type, s) : array, s));
  }
  auto shape = x.shape();
  shape.back() = columns;
  auto primitive = std::make_shared<LoraLinear>(s, base.format, scale);
  if (base.format && unpacks_first(*base.format, dtype, s)) {
    return primitive->compose(inputs)[0];
  }
  return mx::array(std::move(shape), dtype, std::move(primitive), std::move(inputs));
}

Arrays LoraLinear::compose(const Arrays& inputs) {
  auto s = stream();
  auto& x = inputs[0];
  auto product = [&] {
    if (!format_) {
      return mx::matmul(x, mx::transpose(inputs[BASE], s), s);
    }
    return mlx_product(x, packed(inputs, BASE), *format_, s);
  };
  auto low = mx::matmul(x, mx::transpose(inputs[1], s), s);
  auto high = mx::matmul(low, mx::transpose(inputs[2], s), s);
  return {mx::add(product(), mx::multiply(scale(x), high, s), s)};
}

Arrays LoraLinear::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  for (int argnum : argnums) {
    if (argnum >= static_cast<int>(BASE)) {
      // If a gradient of the base weights is wanted, all gradients come from the composition. A
      // faster form would rarely help, because the base is usually frozen.
      return ComposedPrimitive::vjp(primals, cotangents, argnums, outputs);
    }
  }
  auto s = stream();
  auto& a = primals[1];
  auto& b = primals[2];
  // The gradients of x and a use `pulled`, and the gradient of b uses `low`: products with the
  // small matrices. Only the product with the base is large.
  auto g = rows_of(cotangents[0], s);
  auto x = rows_of(primals[0], s);
  auto scaled = [&](const mx::array& low) { return mx::multiply(scale(x), low, s); };
  auto pulled = scaled(product(g, b, false, s));
  Arrays gradients;
  for (int argnum : argnums) {
    if (argnum == 0) {
      auto of_x = product(pulled, a, false, s);
      if (format_) {
        of_x = quantized_transposed(g, packed(primals, BASE), *format_, of_x, s);
      } else {
        of_x = mx::add(product(g, primals[BASE], false, s), of_x, s);
      }
      gradients.push_back(mx::reshape(of_x, primals[0].shape(), s));
    } else if (argnum == 1) {
      gradients.push_back(product(mx::transpose(pulled, s), x, false, s));
    } else {
      auto low = scaled(product(x, a, true, s));
      gradients.push_back(product(mx::transpose(g, s), low, false, s));
    }
  }
  return gradients;
}

std::pair<Arrays, std::vector<int>> LoraLinear::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  WithRowOrder same(order_);
  auto s = stream();
  int size = batch_size(inputs, axes);
  auto run = [&](const Arrays& inputs) {
    LoraBase base{{inputs.begin() + BASE, inputs.end()}, format_};
    return lora_linear(inputs[0], base, inputs[1], inputs[2], scale_, s);
  };
  bool folds = true;
  for (size_t i = 1; i < inputs.size(); ++i) {
    folds = folds && axes[i] < 0;
  }
  if (folds) {
    auto folded = inputs;
    folded[0] = batch_first(inputs[0], axes[0], size, s);
    return {{run(folded)}, {0}};
  }
  return {{entry_by_entry(inputs, axes, run, s)}, {0}};
}

bool LoraLinear::is_equivalent(const mx::Primitive& other) const {
  auto& lora = static_cast<const LoraLinear&>(other);
  return format_ == lora.format_ && scale_ == lora.scale_ && order_ == lora.order_;
}

bool LoraLinear::cpu_alone(const Arrays& inputs) const {
  return format_ && format_->affine() && inputs[BASE + 1].dtype() != inputs[0].dtype();
}

std::vector<mx::Shape> LoraLinear::output_shapes(const Arrays& inputs) {
  auto shape = inputs[0].shape();
  shape.back() = inputs[2].shape(0);
  return {shape};
}

std::vector<Dispatch> LoraLinear::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto& x = inputs[0];
  if (cpu_alone(inputs)) {
    refuse_elsewhere(lora_op);
  }
  auto& b = inputs[2];
  auto& out = outputs[0];
  Arrays of_base = {x};
  of_base.insert(of_base.end(), inputs.begin() + BASE, inputs.end());
  Linear plain(stream(), {false, false, false, ACTIVATION_NONE, order_});
  auto all = format_
                 ? QuantizedMatmul(
                       stream(), {*format_, 1, false, false, 0, false, false, false, false, order_})
                       .dispatches(of_base, outputs, max_threads)
                 : plain.dispatches(of_base, outputs, max_threads);
  if (b.shape(1) == 0) {
    return all;
  }
  auto shape = x.shape();
  shape.back() = b.shape(1);
  auto projected = temporary(shape, x.dtype());
  all.push_back(plain.dispatches({x, inputs[1]}, {projected}, max_threads)[0]);

  LoraParams params{};
  params.columns = out.shape(-1);
  params.rows = grid_count(lora_op, "rows", out.size() / params.columns);
  params.rank = b.shape(1);
  params.scale = rounded(scale_, x.dtype());
  uint32_t threads = std::clamp<uint32_t>(max_threads, 1, LORA_THREADS);
  Launch correct{
      "mlxp_lora_correct" + type_suffix(x),
      {static_cast<uint32_t>(ceil_div(params.columns, threads)),
       static_cast<uint32_t>(ceil_div(params.rows, LORA_ROWS)),
       1},
      {threads, 1, 1}};
  all.emplace_back("lora", correct, Arrays{projected, b, out}, outputs, params);
  return all;
}

CpuCall LoraLinear::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& x = inputs[0];
  auto& out = outputs[0];
  auto columns = static_cast<size_t>(out.shape(-1));
  bool biased = inputs.size() > BASE + 2;
  cpu::LoraCall call{
      .element = element_of(x),
      .mode = format_ ? static_cast<cpu::Mode>(format_->mode) : cpu::Mode::plain,
      .order = order_,
      .of_scales = element_of(cpu_alone(inputs) ? inputs[BASE + 1] : x),
      .bits = format_ ? static_cast<uint32_t>(format_->bits) : 0,
      .group = format_ ? static_cast<size_t>(format_->group_size) : 0,
      .x = bytes(x),
      .rows = out.size() / columns,
      .axis = static_cast<size_t>(x.shape(-1)),
      .weights =
          {bytes(inputs[BASE]),
           format_ ? bytes(inputs[BASE + 1]) : nullptr,
           biased ? bytes(inputs[BASE + 2]) : nullptr,
           columns},
      .low =
          {bytes(inputs[1]),
           bytes(inputs[2]),
           static_cast<size_t>(inputs[2].shape(1)),
           rounded(scale_, x.dtype())},
      .out = bytes(out)};
  return [call] { cpu::mlxp_cpu_lora(call); };
}

} // namespace mlx_primitives
