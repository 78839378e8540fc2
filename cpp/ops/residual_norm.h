#pragma once

#include <optional>

#include "runtime/primitive.h"

namespace mlx_primitives {

/** {h, rms_norm(h)} for h = x + residual. */
Arrays rms_norm_residual(
    const mx::array& x,
    const mx::array& residual,
    const std::optional<mx::array>& weight,
    float eps,
    mx::StreamOrDevice s = {});

/** {h, layer_norm(h)} for h = x + residual. */
Arrays layer_norm_residual(
    const mx::array& x,
    const mx::array& residual,
    const std::optional<mx::array>& weight,
    const std::optional<mx::array>& bias,
    float eps,
    mx::StreamOrDevice s = {});

/**
 * Inputs: x and residual (row-contiguous, floating, of one shape) and, if present, weight [axis]
 * and bias [axis]; all of one dtype. Outputs: the sum and its normalization.
 */
class ResidualNorm : public ComposedPrimitive {
 public:
  ResidualNorm(mx::Stream stream, bool centered, bool weighted, bool biased, float eps)
      : ComposedPrimitive(stream),
        centered_(centered),
        weighted_(weighted),
        biased_(biased),
        eps_(eps) {}

  COMPOSED_METHODS(ResidualNorm)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  VJP_METHOD
  VMAP_METHOD

 private:
  bool centered_; // layer normalization; otherwise RMS, which has no bias
  bool weighted_;
  bool biased_;
  float eps_;
};

} // namespace mlx_primitives
