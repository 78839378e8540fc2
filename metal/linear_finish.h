// The last steps of a product.
#pragma once

#include "activation_functions.h"
#include "linear.h"

/**
 * The product, the bias, the activation and the residual. Each step is rounded to T, as MLX's
 * separate kernels round.
 */
template <typename T>
METAL_FUNC T finished(
    float sum,
    const device T* bias,
    const device T* residual,
    constant LinearParams& params,
    uint column,
    size_t at) {
  T y = T(sum);
  if (params.biased) {
    y = T(float(y) + float(bias[column]));
  }
  y = activated<T>(params.activation, y);
  if (params.residual) {
    y = T(float(y) + float(residual[at]));
  }
  return y;
}
