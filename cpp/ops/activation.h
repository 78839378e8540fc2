#pragma once

#include "../../metal/activation.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

/** An elementwise activation of x, or of a and b, which are broadcast to one shape. */
mx::array activation(ActivationKind kind, const mx::array& x, mx::StreamOrDevice s = {});
mx::array activation(
    ActivationKind kind, const mx::array& a, const mx::array& b, mx::StreamOrDevice s = {});

/** x * scale + shift, where scale and shift are numbers or vectors along the last axis. */
mx::array affine(
    const mx::array& x, const mx::array& scale, const mx::array& shift, mx::StreamOrDevice s = {});

/** The activation of one input as a graph of MLX's ops, with the roundings of mlx.nn. */
mx::array composed_activation(ActivationKind kind, const mx::array& x, mx::Stream s);

/** Inputs: one or two row-contiguous arrays of one shape and floating dtype. */
class Activation : public ComposedPrimitive {
 public:
  Activation(mx::Stream stream, ActivationKind kind) : ComposedPrimitive(stream), kind_(kind) {}

  COMPOSED_METHODS(Activation)
  std::vector<size_t> donors(const Arrays& inputs) const override {
    return inputs.size() > 1 ? std::vector<size_t>{0, 1} : std::vector<size_t>{0};
  }
  VMAP_METHOD

 private:
  ActivationKind kind_;
};

/**
 * Inputs: x, scale and shift of one dtype; scale and shift have one element or one for each column.
 */
class Affine : public ComposedPrimitive {
 public:
  using ComposedPrimitive::ComposedPrimitive;

  COMPOSED_METHODS(Affine)
  DONATES(0)
  VMAP_METHOD
};

} // namespace mlx_primitives
