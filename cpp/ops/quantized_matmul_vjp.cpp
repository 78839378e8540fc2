// The gradients of a QuantizedMatmul.
#include "ops/activation.h"
#include "ops/linear.h"
#include "ops/quantized_matmul.h"
#include "ops/quantized_transposed.h"
#include "ops/rms_norm.h"

namespace mlx_primitives {

Arrays QuantizedMatmul::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  const int norm = 1 + kind_.parts * stride(); // the first input after the weights
  bool of_x = false;
  for (int argnum : argnums) {
    if (argnum > 0 && argnum < norm) {
      // Packed weights are usually frozen, so gradients of scales and biases have no shortcut.
      return ComposedPrimitive::vjp(primals, cotangents, argnums, outputs);
    }
    of_x = of_x || argnum == 0 || (kind_.normed && argnum == norm);
  }
  auto s = stream();
  auto more = extras(primals);
  auto& g = cotangents[0];
  Arrays of_inputs; // of x and of the norm's weight
  if (of_x) {
    auto x = more.norm ? rms_norm(primals[0], more.norm, kind_.eps, s) : primals[0];
    Arrays parts;
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
    } else if (kind_.normed && argnum == norm) {
      gradients.push_back(of_inputs[1]);
    } else if (kind_.biased && argnum == norm + (kind_.normed ? 1 : 0)) {
      gradients.push_back(sum_of_rows(g, s));
    } else {
      gradients.push_back(g); // of the residual
    }
  }
  return gradients;
}

} // namespace mlx_primitives
