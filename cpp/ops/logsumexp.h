#pragma once

#include "runtime/primitive.h"

namespace mlx_primitives {

/** log(sum(exp(x))) over the last axis, accumulated in float32. */
mx::array logsumexp(const mx::array& x, bool keepdims, mx::StreamOrDevice s = {});

/** x - logsumexp(x) over the last axis; logsumexp is rounded to the type of x first. */
mx::array log_softmax(const mx::array& x, mx::StreamOrDevice s = {});

/** Input: x (row-contiguous, floating). The last axis of the output has one element. */
class LogSumExp : public FusedPrimitive {
 public:
  explicit LogSumExp(mx::Stream stream) : FusedPrimitive(stream) {}

  PRIMITIVE_METHODS(LogSumExp)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
};

/** Input: x (row-contiguous, floating). */
class LogSoftmax : public FusedPrimitive {
 public:
  explicit LogSoftmax(mx::Stream stream) : FusedPrimitive(stream) {}

  PRIMITIVE_METHODS(LogSoftmax)
  DONATES(0)
};

/** Inputs: x and the gradient of its logsumexp or, if `subtracted`, of its log-softmax. */
class LogSumExpGrad : public ComposedPrimitive {
 public:
  LogSumExpGrad(mx::Stream stream, bool subtracted)
      : ComposedPrimitive(stream), subtracted_(subtracted) {}

  COMPOSED_METHODS(LogSumExpGrad)
  DONATES(0)
  VMAP_METHOD

 private:
  bool subtracted_;
};

} // namespace mlx_primitives
