#pragma once

#include "runtime/primitive.h"

namespace mlx_primitives {

/** y = exp(x - max(x)) / sum(exp(x - max(x))) over the last axis, accumulated in float32. */
mx::array softmax(const mx::array& x, mx::StreamOrDevice s = {});

/** Input: x (row-contiguous, floating). */
class Softmax : public FusedPrimitive {
 public:
  explicit Softmax(mx::Stream stream) : FusedPrimitive(stream) {}

  PRIMITIVE_METHODS(Softmax)
  DONATES(0)
};

} // namespace mlx_primitives
