#pragma once

#include "ops/layer_norm.h"

namespace mlx_primitives {

/** The normalization, or an affine map in its place, and the gradients that are wanted. */
struct NormGradKind {
  bool centered; // layer normalization; otherwise RMS normalization
  float eps;
  bool affine = false; // no normalization, but a weight: on CPUs alone
  bool weighted = false;
  bool added = false; // to the gradient of x
  bool of_weight = false;
  bool of_bias = false;

  bool operator==(const NormGradKind&) const = default;
};

/**
 * The gradients of a normalization of x, given the gradient of its result: for x (plus `added`),
 * then for the weight and for the bias, if `kind` wants them.
 */
Arrays norm_gradients(
    const NormGradKind& kind,
    const mx::array& x,
    const std::optional<mx::array>& weight,
    const mx::array& g,
    const std::optional<mx::array>& added,
    mx::Stream s);

/**
 * The gradients in the inputs `argnums` of a normalization of x. Its weight and bias are the inputs
 * from `first` on. Only the normalization is read from `kind`, not the gradients that it wants.
 */
Arrays norm_vjp(
    NormGradKind kind,
    const mx::array& x,
    const NormAffine& affine,
    const mx::array& g,
    const std::optional<mx::array>& added,
    const std::vector<int>& argnums,
    int first,
    mx::Stream s);

/**
 * Inputs: x, the weight if present, g, and an array to add if present; row-contiguous, of one type.
 */
class NormGrad : public ComposedPrimitive {
 public:
  NormGrad(mx::Stream stream, NormGradKind kind) : ComposedPrimitive(stream), kind_(kind) {}

  COMPOSED_METHODS(NormGrad)
  std::vector<size_t> donors(const Arrays& inputs) const override;
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  bool cpu_alone(const Arrays&) const override {
    return kind_.affine;
  }
  bool adds() const override {
    return kind_.added;
  }
  Arrays plus(const Arrays& inputs, const mx::array& term) override;
  VMAP_METHOD

 private:
  std::optional<mx::array> weight(const Arrays& inputs) const;
  std::optional<mx::array> added(const Arrays& inputs) const;
  const mx::array& g(const Arrays& inputs) const {
    return inputs[kind_.weighted ? 2 : 1];
  }

  NormGradKind kind_;
};

} // namespace mlx_primitives
