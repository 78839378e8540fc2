#pragma once

#include <optional>

#include "runtime/primitive.h"

namespace mlx_primitives {

/**
 * y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last axis, accumulated in
 * float32.
 */
mx::array layer_norm(
    const mx::array& x,
    const std::optional<mx::array>& weight,
    const std::optional<mx::array>& bias,
    float eps,
    mx::StreamOrDevice s = {});

/** The optional weight and bias of a normalization, which are its last inputs. */
struct NormAffine {
  std::optional<mx::array> weight;
  std::optional<mx::array> bias;

  /** Reads the weight and the bias from the inputs that begin at `first`. */
  static NormAffine of(const Arrays& inputs, size_t first, bool weighted, bool biased);

  /** Throws if one of the vectors is not as long as the last axis of x. */
  void require(const char* op, const mx::array& x) const;

  /** Appends the weight and the bias to the inputs of a primitive, if present. */
  void push(Arrays& inputs, mx::Dtype dtype, mx::Stream s) const;

  /** Moves the mapped axes (-1 for none) to the front, to match a batched y of this rank. */
  NormAffine batched(int weight_axis, int bias_axis, size_t rank, mx::Stream s) const;

  /** y * weight + bias, rounded after each step as in the kernels. */
  mx::array apply(mx::array y, mx::Stream s) const;
};

/**
 * MLX's op. On an NVIDIA GPU, a composition of simpler ops for rows for which the gradient of MLX's
 * op is wrong.
 */
mx::array composed_layer_norm(
    const mx::array& x, const NormAffine& affine, float eps, mx::Stream s);

/** Inputs: x (row-contiguous, floating) and, if present, weight [axis] and bias [axis]. */
class LayerNorm : public ComposedPrimitive {
 public:
  LayerNorm(mx::Stream stream, bool weighted, bool biased, float eps)
      : ComposedPrimitive(stream), weighted_(weighted), biased_(biased), eps_(eps) {}

  COMPOSED_METHODS(LayerNorm)
  DONATES(0)
  VJP_METHOD
  VMAP_METHOD

 private:
  bool weighted_;
  bool biased_;
  float eps_;
};

} // namespace mlx_primitives
