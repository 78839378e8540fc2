#pragma once

#include "../../metal/activation.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

/** An elementwise activation of x, or of a and b, which are broadcast to the same shape. */
mx::array activation(ActivationKind kind, const mx::array& x, mx::StreamOrDevice s = {});
mx::array activation(
    ActivationKind kind, const mx::array& a, const mx::array& b, mx::StreamOrDevice s = {});

/** x * scale + shift, where scale and shift are numbers or vectors along the last axis. */
mx::array affine(
    const mx::array& x, const mx::array& scale, const mx::array& shift, mx::StreamOrDevice s = {});

/**
 * The gradient of x, given the gradient g of the result of an activation of one input. For
 * ACTIVATION_NONE, this is g.
 */
mx::array activation_gradient(
    ActivationKind kind, const mx::array& x, const mx::array& g, mx::StreamOrDevice s = {});

/** The gradients of an activation of two inputs, which have the shape of its result. */
Arrays activation_gradients(
    ActivationKind kind,
    const mx::array& a,
    const mx::array& b,
    const mx::array& g,
    mx::StreamOrDevice s = {});

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
  VJP_METHOD
  VMAP_METHOD

 private:
  ActivationKind kind_;
};

/** Inputs: the inputs of an Activation of two arrays, and the gradient of its result. */
class ActivationGrad : public ComposedPrimitive {
 public:
  ActivationGrad(mx::Stream stream, ActivationKind kind) : ComposedPrimitive(stream), kind_(kind) {}

  COMPOSED_METHODS(ActivationGrad)
  std::vector<size_t> donors(const Arrays&) const override {
    return {0, 1, 2};
  }
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    return {inputs[0].shape(), inputs[0].shape()};
  }
  VMAP_METHOD

 private:
  ActivationKind kind_;
};

/**
 * Inputs: x, scale and shift of one dtype. Scale and shift have either one element or one for each
 * column.
 */
class Affine : public ComposedPrimitive {
 public:
  using ComposedPrimitive::ComposedPrimitive;

  COMPOSED_METHODS(Affine)
  DONATES(0)
  VJP_METHOD
  VMAP_METHOD
};

} // namespace mlx_primitives
