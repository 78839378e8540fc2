#pragma once

#include <optional>

#include "../../metal/activation.h"
#include "ops/common.h"
#include "plan/linear.h"

namespace mlx_primitives {

/** act(x * w^T + bias) + residual: x [..., k], w [n, k], bias [n], residual [..., n]. */
mx::array linear(
    const mx::array& x,
    const mx::array& w,
    const std::optional<mx::array>& bias,
    ActivationKind activation,
    const std::optional<mx::array>& residual,
    mx::StreamOrDevice s = {});

/** a [..., m, k] times b [..., k, n], or [..., n, k] if `transposed`. */
mx::array matmul(
    const mx::array& a, const mx::array& b, bool transposed, mx::StreamOrDevice s = {});

/**
 * Inputs, row-contiguous and of one dtype: x [..., k], w [n, k] or [k, n], then the bias and the
 * residual if there are. With w of more axes x is [..., m, k] with the same leading axes.
 */
class Linear : public ComposedPrimitive {
 public:
  struct State {
    bool columns; // w is [..., k, n]
    bool biased;
    bool residual;
    ActivationKind activation;

    bool operator==(const State&) const = default;
  };

  Linear(mx::Stream stream, State state) : ComposedPrimitive(stream), state_(state) {}

  COMPOSED_METHODS(Linear)
  std::pair<std::vector<mx::array>, std::vector<int>> vmap(
      const std::vector<mx::array>& inputs, const std::vector<int>& axes) override;

 private:
  const mx::array* bias(const std::vector<mx::array>& inputs) const;
  const mx::array* residual(const std::vector<mx::array>& inputs) const;
  LinearShape shape(const std::vector<mx::array>& inputs) const;
  /** Checks the layouts and gives `out` a buffer, the residual's if nothing else reads it. */
  void prepare(const std::vector<mx::array>& inputs, mx::array& out) const;

  State state_;
};

} // namespace mlx_primitives
