#pragma once

#include "ops/quantized_matmul.h"

namespace mlx_primitives {

/**
 * x * W + residual, where x is [..., columns] and W is a packed matrix [columns, axis]. Derivatives
 * of x * W^T need it. W is decoded one tile at a time, never as a whole.
 */
mx::array quantized_transposed(
    const mx::array& x,
    const QuantizedWeight& weight,
    const QuantizedFormat& format,
    const std::optional<mx::array>& residual,
    mx::StreamOrDevice s = {});

/**
 * Inputs: x, the arrays of the weight, and the residual if present; row-contiguous, of one type.
 */
class QuantizedTransposed : public ComposedPrimitive {
 public:
  QuantizedTransposed(mx::Stream stream, const QuantizedFormat& format, bool added)
      : ComposedPrimitive(stream), format_(format), added_(added) {}

  COMPOSED_METHODS(QuantizedTransposed)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  std::vector<size_t> donors(const Arrays& inputs) const override {
    return added_ ? std::vector<size_t>{inputs.size() - 1} : std::vector<size_t>{};
  }
  bool adds() const override {
    return added_;
  }
  Arrays plus(const Arrays& inputs, const mx::array& term) override {
    if (added_) {
      return {};
    }
    return {quantized_transposed(inputs[0], weight(inputs), format_, term, stream())};
  }
  VJP_METHOD
  VMAP_METHOD

 private:
  QuantizedWeight weight(const Arrays& inputs) const {
    auto biases = format_.affine() ? std::optional(inputs[3]) : std::nullopt;
    return {inputs[1], inputs[2], biases};
  }
  /** The number of inputs without the residual: x and the arrays of the weight. */
  size_t arrays() const {
    return format_.affine() ? 4 : 3;
  }

  QuantizedFormat format_;
  bool added_;
};

} // namespace mlx_primitives
