#pragma once

#include <optional>

#include "../../metal/activation.h"
#include "runtime/primitive.h"
#include "runtime/row_order.h"

namespace mlx_primitives {

/** x is [batch, m, k]; each batch entry of w is [n, k], or [k, n] if `columns`. */
struct LinearShape {
  uint64_t batch;
  uint64_t m;
  uint64_t n;
  uint64_t k;
  bool columns;
};

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
 * MLX's matmul of a and b, or of a and b with its last two axes exchanged. On a CPU, our kernels
 * compute it for float32, float16 and bfloat16. On a GPU, and on the CPU of a system with Metal,
 * MLX computes it; there MLX uses Accelerate on the CPU.
 */
mx::array product(
    const mx::array& a, const mx::array& b, bool transposed, mx::StreamOrDevice s = {});

/** x reshaped to a matrix of all its rows. */
mx::array rows_of(const mx::array& x, mx::Stream s);

/** The sums of x over all axes except the last, added in float32 and rounded once. */
mx::array sum_of_rows(const mx::array& x, mx::Stream s);

/**
 * silu(y * gate^T) * (y * up^T) of x, gate, up and the weight of a norm, where y is the RMS
 * normalization of x. Builds a node only for a single row of 16-bit numbers, in `RowOrder::tokens`,
 * without gradients, on an NVIDIA GPU, and if k is a multiple of 8. Otherwise returns nothing. The
 * result has the same bits as the separate ops.
 */
std::optional<mx::array> gated_linear(Arrays inputs, float eps, mx::StreamOrDevice s = {});

/**
 * Inputs, row-contiguous and of one dtype: x [..., k], w [n, k] or [k, n], then the bias and the
 * residual if present. Only w, if it is [n, k], can have another type, as `read_as` says. If w has
 * more axes, x is [..., m, k] with the same leading axes. If `State::turned`, the last two axes of
 * x are [k, m] instead of [m, k]. If `State::gated`, the inputs are x, gate, up and the norm's
 * weight.
 */
class Linear : public ComposedPrimitive {
 public:
  struct State {
    bool columns; // w is [..., k, n]
    bool biased;
    bool residual;
    ActivationKind activation;
    RowOrder order = row_order();
    bool turned = false; // x is [..., k, m], which only the CPU's kernel takes
    bool gated = false;  // `gated_linear`
    float eps = 0;       // of its norm

    bool operator==(const State&) const = default;
  };

  Linear(mx::Stream stream, State state) : ComposedPrimitive(stream), state_(state) {}

  COMPOSED_METHODS(Linear)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  std::vector<size_t> donors(const Arrays& inputs) const override {
    return state_.residual ? std::vector<size_t>{inputs.size() - 1} : std::vector<size_t>{};
  }
  bool cpu_alone(const Arrays& inputs) const override {
    return state_.turned || inputs[1].dtype() != inputs[0].dtype();
  }
  bool adds() const override {
    return state_.residual;
  }
  Arrays plus(const Arrays& inputs, const mx::array& term) override {
    if (state_.residual || state_.gated) {
      return {};
    }
    auto all = inputs;
    all.push_back(row_contiguous(term, stream()));
    auto state = state_;
    state.residual = true;
    auto primitive = std::make_shared<Linear>(stream(), state);
    return {mx::array(term.shape(), term.dtype(), std::move(primitive), std::move(all))};
  }
  VJP_METHOD
  VMAP_METHOD

 private:
  const mx::array* bias(const Arrays& inputs) const;
  const mx::array* residual(const Arrays& inputs) const;
  LinearShape shape(const Arrays& inputs) const;
  std::vector<Dispatch> gated_dispatches(
      const Arrays& inputs, const Arrays& outputs, uint32_t max_threads);

  State state_;
};

/** Whether a product has few rows of x, which its kernels process together. */
bool takes_few_rows(const LinearShape& shape, RowOrder order);

/**
 * Whether few rows can use the kernel for NVIDIA GPUs, and the plan of that kernel. It requires
 * 16-bit types, and rows that are aligned to loads of 16 bytes.
 */
bool takes_tiles(
    const LinearShape& shape, const mx::array& x, const mx::array& w, mx::Stream stream);
Launch plan_tiles(const LinearShape& shape, const std::string& suffix, uint32_t max_threads);

} // namespace mlx_primitives
