#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  ACTIVATION_GROUP = 256, // threads
  AFFINE_ROWS = 4,        // rows that a thread of `affine` computes
};

/** Activations of one input, then activations of two inputs. */
enum ActivationKind : unsigned {
  ACTIVATION_NONE,
  ACTIVATION_RELU,
  ACTIVATION_GELU,
  ACTIVATION_GELU_TANH,
  ACTIVATION_SILU,
  ACTIVATION_SWIGLU,
  ACTIVATION_GEGLU,
  ACTIVATION_GEGLU_TANH,
  ACTIVATION_ADD_RELU,
  ACTIVATION_MUL_RELU,
  ACTIVATION_RELU_SLOPE, // derivatives at the first input, times the second
  ACTIVATION_GELU_SLOPE,
  ACTIVATION_GELU_TANH_SLOPE,
  ACTIVATION_SILU_SLOPE,
};

struct ActivationParams {
  unsigned long size; // 64 bits in Metal and wherever MLX runs
};

struct AffineParams {
  unsigned rows;
  unsigned columns;
  unsigned scale_columns; // 1 or `columns`
  unsigned shift_columns;
};

} // namespace mlx_primitives
