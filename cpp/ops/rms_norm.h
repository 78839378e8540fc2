#pragma once

#include <optional>

#include "runtime/primitive.h"

namespace mlx_primitives {

/** y = x / sqrt(mean(x^2) + eps) * weight over the last axis, accumulated in float32. */
mx::array rms_norm(
    const mx::array& x,
    const std::optional<mx::array>& weight,
    float eps,
    mx::StreamOrDevice s = {});

/** Inputs: x (row-contiguous, floating) and, if weighted, weight [axis]; both of one dtype. */
class RmsNorm : public FusedPrimitive {
 public:
  RmsNorm(mx::Stream stream, float eps) : FusedPrimitive(stream), eps_(eps) {}

  PRIMITIVE_METHODS(RmsNorm)
  DONATES(0)

 private:
  float eps_;
};

} // namespace mlx_primitives
