#pragma once

#include "runtime/primitive.h"

namespace mlx_primitives {

/** MLX's take. If it takes rows of a floating matrix, its gradient is a TakeGrad. */
mx::array take(const mx::array& a, const mx::array& indices, int axis, mx::StreamOrDevice s = {});

/**
 * The gradient of a matrix [rows, columns]. Inputs: the gradient [count, columns] of the rows that
 * were taken, and the numbers of these rows, uint32 [count]; row-contiguous. For each row, the
 * gradients of its copies are added in their order, so that CPUs and GPUs compute the same bits.
 */
class TakeGrad : public ComposedPrimitive {
 public:
  TakeGrad(mx::Stream stream, int rows) : ComposedPrimitive(stream), rows_(rows) {}

  COMPOSED_METHODS(TakeGrad)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    return {{rows_, inputs[0].shape(1)}};
  }
  VJP_METHOD

 private:
  int rows_;
};

} // namespace mlx_primitives
