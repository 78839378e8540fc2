#pragma once

#include <optional>

#include "../../metal/masked_softmax.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

/** How a softmax scales and masks its scores. */
struct Masking {
  float scale = 1.0f;
  bool causal = false; // queries align with the last keys and see none after their own
  int window = 0;      // if causal, how many keys a query sees, up to its own; 0 for all

  bool operator==(const Masking&) const = default;
};

/**
 * softmax(scale * x + mask) over the last axis of x [..., queries, keys]. The mask is additive or
 * bool (true for a score that counts), and may have any shape that broadcasts to the shape of x. It
 * is read without a copy. A window makes the mask causal.
 */
mx::array masked_softmax(
    const mx::array& x,
    float scale,
    const std::optional<mx::array>& mask,
    bool causal,
    std::optional<int> window,
    mx::StreamOrDevice s = {});

/**
 * y * (g - sum(y * g)) over the last axis: the gradient of a softmax y, given the gradient g of y.
 */
mx::array softmax_gradient(const mx::array& y, const mx::array& g, mx::Stream s);

/** Inputs: x (row-contiguous, floating, rank >= 2) and optionally a mask, in any layout. */
class MaskedSoftmax : public ComposedPrimitive {
 public:
  MaskedSoftmax(mx::Stream stream, Masking masking)
      : ComposedPrimitive(stream), masking_(masking) {}

  COMPOSED_METHODS(MaskedSoftmax)
  DONATES(0)
  bool takes_strides(size_t input) const override {
    return input == 1; // the mask
  }
  VJP_METHOD
  VMAP_METHOD
  Cost cost(const Arrays& inputs, const Arrays& outputs) override;

 private:
  Masking masking_;
};

/**
 * scale * y * (g - sum(y * g)) for a score that counted, else 0. Inputs: y, the output of the
 * softmax, its gradient g (both row-contiguous) and the mask, if it is bool.
 */
class MaskedSoftmaxGrad : public ComposedPrimitive {
 public:
  MaskedSoftmaxGrad(mx::Stream stream, Masking masking)
      : ComposedPrimitive(stream), masking_(masking) {}

  COMPOSED_METHODS(MaskedSoftmaxGrad)
  DONATES(1)
  bool takes_strides(size_t input) const override {
    return input == 2; // the mask
  }
  VMAP_METHOD

 private:
  Masking masking_;
};

} // namespace mlx_primitives
