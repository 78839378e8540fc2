#pragma once

#include "runtime/primitive.h"

namespace mlx_primitives {

/**
 * MLX's take. Where rows of a floating matrix are taken on a CPU, the gradient of the matrix is a
 * TakeGrad.
 */
mx::array take(const mx::array& a, const mx::array& indices, int axis, mx::StreamOrDevice s = {});

/**
 * The gradient of a matrix [rows, columns]. Inputs: the gradient [count, columns] of the rows that
 * were taken, and their numbers, uint32 [count]; row-contiguous.
 */
class TakeGrad : public CpuPrimitive {
 public:
  TakeGrad(mx::Stream stream, int rows) : CpuPrimitive(stream), rows_(rows) {}

  CPU_METHODS(TakeGrad)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    return {{rows_, inputs[0].shape(1)}};
  }
  VJP_METHOD

 private:
  int rows_;
};

} // namespace mlx_primitives
