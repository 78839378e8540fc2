#pragma once

#include <optional>

#include "ops/quantized_matmul.h"

namespace mlx_primitives {

/** A plain matrix [columns, axis], or a packed one with its format. */
struct LoraBase {
  Arrays arrays;
  std::optional<QuantizedFormat> format;
};

/** x * W^T + scale * (x * A^T) * B^T: a [rank, axis], b [columns, rank]. */
mx::array lora_linear(
    const mx::array& x,
    const LoraBase& base,
    const mx::array& a,
    const mx::array& b,
    float scale,
    mx::StreamOrDevice s = {});

/**
 * Inputs: x, a, b, then the arrays of the base; row-contiguous. All floating inputs have one type.
 * Only the scales and biases of affine weights can have another type, as `read_as` says.
 */
class LoraLinear : public ComposedPrimitive {
 public:
  LoraLinear(mx::Stream stream, std::optional<QuantizedFormat> format, float scale)
      : ComposedPrimitive(stream), format_(format), scale_(scale), order_(row_order()) {}

  COMPOSED_METHODS(LoraLinear)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  bool cpu_alone(const Arrays& inputs) const override;
  VJP_METHOD
  VMAP_METHOD

 private:
  mx::array scale(const mx::array& like) const {
    return mx::array(scale_, like.dtype());
  }

  std::optional<QuantizedFormat> format_;
  float scale_;
  RowOrder order_;
};

} // namespace mlx_primitives
