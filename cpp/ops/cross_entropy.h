#pragma once

#include <optional>

#include "../../metal/cross_entropy.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

struct CrossEntropyTargets {
  float smoothing = 0.0f; // the share of each target that is spread over all classes
  std::optional<int> ignored;

  bool operator==(const CrossEntropyTargets&) const = default;

  CrossEntropyParams params(uint32_t rows, uint32_t classes) const {
    return {rows, classes, ignored.has_value(), ignored.value_or(0), smoothing};
  }
};

/**
 * logsumexp(x) - (1 - smoothing) * x[target] - smoothing * mean(x) for each row of the logits x
 * [..., classes] and its target, an integer [...]. The result is 0 for a row with the ignored
 * target, and NaN for a row whose target is not a class.
 */
mx::array cross_entropy(
    const mx::array& x,
    const mx::array& targets,
    float smoothing,
    std::optional<int> ignored,
    mx::StreamOrDevice s = {});

/**
 * Inputs: x (row-contiguous, floating) and targets (row-contiguous, int32). Outputs: the losses,
 * and [..., 2] float32 for the gradient: each row's maximum and its sum of exponentials.
 */
class CrossEntropy : public ComposedPrimitive {
 public:
  CrossEntropy(mx::Stream stream, CrossEntropyTargets targets)
      : ComposedPrimitive(stream), targets_(targets) {}

  COMPOSED_METHODS(CrossEntropy)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  VJP_METHOD
  VMAP_METHOD

 private:
  CrossEntropyTargets targets_;
};

/**
 * g * (softmax(x) - (1 - smoothing) * onehot(target) - smoothing / classes). Inputs: x, targets,
 * the gradient g of the losses, and the statistics that CrossEntropy saved. The statistics depend
 * on x alone, so no derivative is taken through them.
 */
class CrossEntropyGrad : public ComposedPrimitive {
 public:
  CrossEntropyGrad(mx::Stream stream, CrossEntropyTargets targets)
      : ComposedPrimitive(stream), targets_(targets) {}

  COMPOSED_METHODS(CrossEntropyGrad)
  DONATES(0)
  VMAP_METHOD

 private:
  CrossEntropyTargets targets_;
};

} // namespace mlx_primitives
