// The gradients of a QuantizedMatmul, and its products of mapped batches.
#include "ops/activation.h"
#include "ops/linear.h"
#include "ops/quantize.h"
#include "ops/quantized_matmul.h"
#include "ops/quantized_transposed.h"
#include "ops/reduce.h"
#include "ops/rms_norm.h"

namespace mlx_primitives {

/**
 * The gradient with respect to the scales or the biases of a weight. `g` is the gradient of the
 * weight's product with x.
 */
mx::array QuantizedMatmul::of_groups(
    const mx::array& g, const mx::array& x, const QuantizedWeight& weight, bool of_scales) {
  auto s = stream();
  auto matrix = product(mx::swapaxes(rows_of(g, s), 0, 1, s), rows_of(x, s), false, s);
  Dequantize codes(s, kind_.format.group_size, kind_.format.bits);
  Arrays packing = {weight.packed, weight.scales, *weight.biases};
  return codes.vjp(packing, {matrix}, {of_scales ? 1 : 2}, {})[0];
}

Arrays QuantizedMatmul::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  const int norm = 1 + kind_.parts * stride(); // the first input after the weights
  bool of_x = false;
  bool of_weights = false;
  for (int argnum : argnums) {
    bool of_weight = argnum > 0 && argnum < norm;
    bool packed = of_weight && (argnum - 1) % stride() == 0;
    // MLX refuses the gradients of packed weights, and of scales that are bytes.
    if (packed || (of_weight && (!kind_.format.affine() || mixes(primals)))) {
      return ComposedPrimitive::vjp(primals, cotangents, argnums, outputs);
    }
    of_x = of_x || argnum == 0 || (kind_.normed && argnum == norm);
    of_weights = of_weights || (argnum > 0 && argnum < norm);
  }
  auto s = stream();
  auto more = extras(primals);
  auto& g = cotangents[0];
  auto x = more.norm ? rms_norm(primals[0], more.norm, kind_.eps, s) : primals[0];
  Arrays parts; // the gradients of the products
  if (of_x || of_weights) {
    if (kind_.swiglu) {
      auto product = [&](int part) {
        return quantized_matmul(x, {weight(primals, part)}, kind_.format, {}, s);
      };
      parts = activation_gradients(ACTIVATION_SWIGLU, product(0), product(1), g, s);
    } else if (kind_.parts == 1) {
      parts = {g};
    } else {
      mx::Shape ends;
      int end = 0;
      for (int part = 0; part + 1 < kind_.parts; ++part) {
        ends.push_back(end += weight(primals, part).packed.shape(0));
      }
      parts = mx::split(g, ends, -1, s);
    }
  }
  Arrays of_inputs; // the gradients of x and of the norm's weight
  if (of_x) {
    std::optional<mx::array> sum;
    for (int part = 0; part < kind_.parts; ++part) {
      sum = quantized_transposed(parts[part], weight(primals, part), kind_.format, sum, s);
    }
    of_inputs = {*sum};
    if (more.norm) {
      RmsNorm normed(s, kind_.eps);
      of_inputs = normed.vjp({primals[0], *more.norm}, {*sum}, {0, 1}, {});
    }
  }
  Arrays gradients;
  for (int argnum : argnums) {
    if (argnum == 0) {
      gradients.push_back(of_inputs[0]);
    } else if (argnum < norm) {
      int part = (argnum - 1) / stride();
      bool of_scales = (argnum - 1) % stride() == 1;
      gradients.push_back(of_groups(parts[part], x, weight(primals, part), of_scales));
    } else if (kind_.normed && argnum == norm) {
      gradients.push_back(of_inputs[1]);
    } else if (kind_.biased && argnum == norm + (kind_.normed ? 1 : 0)) {
      gradients.push_back(sum_of_rows(g, s));
    } else {
      gradients.push_back(g); // the gradient of the residual
    }
  }
  return gradients;
}

std::pair<Arrays, std::vector<int>> QuantizedMatmul::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  auto s = stream();
  int size = batch_size(inputs, axes);
  auto run = [&](const Arrays& inputs) {
    std::vector<QuantizedWeight> weights;
    for (int part = 0; part < kind_.parts; ++part) {
      weights.push_back(weight(inputs, part));
    }
    return quantized_matmul(inputs[0], weights, kind_.format, extras(inputs), s);
  };
  // If only x and a residual are mapped, the mapped axis becomes a leading axis.
  size_t residual = kind_.added ? inputs.size() - 1 : inputs.size();
  bool folds = true;
  for (size_t i = 1; i < inputs.size(); ++i) {
    folds = folds && (i == residual || axes[i] < 0);
  }
  if (folds) {
    auto folded = inputs;
    folded[0] = batch_first(inputs[0], axes[0], size, s);
    if (kind_.added) {
      folded[residual] = batch_first(inputs[residual], axes[residual], size, s);
    }
    return {{run(folded)}, {0}};
  }
  // Each entry has separate weights, and MLX too lacks a batched product for them.
  return {{entry_by_entry(inputs, axes, run, s)}, {0}};
}

} // namespace mlx_primitives
