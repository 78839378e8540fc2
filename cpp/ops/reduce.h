#pragma once

#include "runtime/primitive.h"

namespace mlx_primitives {

enum class ReductionKind : uint8_t { Sum, Mean, Max, SumOfSquares, Norm };

/** Reduces the last axis or all axes; accumulates in float32 and rounds once. */
mx::array reduce(
    const mx::array& x, ReductionKind kind, bool all, bool keepdims, mx::StreamOrDevice s = {});

/** Input: x (row-contiguous, floating). */
class Reduction : public ComposedPrimitive {
 public:
  Reduction(mx::Stream stream, ReductionKind kind, bool all, bool keepdims)
      : ComposedPrimitive(stream), kind_(kind), all_(all), keepdims_(keepdims) {}

  COMPOSED_METHODS(Reduction)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  VJP_METHOD
  VMAP_METHOD

 private:
  ReductionKind kind_;
  bool all_; // all axes, otherwise the last
  bool keepdims_;
};

/**
 * The gradient of maxima, sums of squares or L2 norms on a CPU. Inputs: x, the gradient of the
 * result and, except for sums of squares, the result; row-contiguous, of one type. The gradient and
 * the result have one number for each row of x, or one number in all.
 */
class ReductionGrad : public CpuPrimitive {
 public:
  ReductionGrad(mx::Stream stream, ReductionKind kind) : CpuPrimitive(stream), kind_(kind) {}

  CPU_METHODS(ReductionGrad)

 private:
  ReductionKind kind_;
};

} // namespace mlx_primitives
