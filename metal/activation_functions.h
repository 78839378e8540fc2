#pragma once

#include "activation.h"
#include "common.h"

// Each step of an activation is rounded to T, because MLX's kernels compute in T. Derivatives are
// computed in float, and rounded at the end.

/**
 * The error function, with an error of at most 7.1e-8 and 1.2 ulps. It uses two minimax
 * polynomials: one of erf(x) / x - 1 in x^2, and, where this polynomial would lose digits, one of
 * log(erfc(|x|)).
 */
METAL_FUNC float error_function(float x) {
  const float t = fabs(x);
  if (t < 0.93f) {
    const float s = t * t;
    float p = -5.976891e-4f;
    p = fma(p, s, 4.9909796e-3f);
    p = fma(p, s, -2.6765566e-2f);
    p = fma(p, s, 1.12818025e-1f);
    p = fma(p, s, -3.7612495e-1f);
    p = fma(p, s, 1.2837915e-1f);
    return fma(p, x, x);
  }
  const float a = min(t, 3.95f); // above it the result is 1
  float p = -2.1161906e-5f;
  p = fma(p, a, 4.3521888e-4f);
  p = fma(p, a, -4.174643e-3f);
  p = fma(p, a, 2.5128625e-2f);
  p = fma(p, a, -1.0829394e-1f);
  p = fma(p, a, -6.333347e-1f);
  p = fma(p, a, -1.1295208f);
  p = fma(p, a, 1.7587456e-4f);
  return copysign(1.0f - precise::exp(p), x);
}

template <typename T>
METAL_FUNC T sigmoid_of(T x) {
  const T e = T(precise::exp(fabs(float(x))));
  const T y = T(1.0f / float(T(1.0f + float(e))));
  return float(x) < 0.0f ? y : T(1.0f - float(y));
}

/** max(x, 0). Returns 0 for -0 and NaN for NaN. */
template <typename T>
METAL_FUNC T relu(T x) {
  return float(x) <= 0.0f ? T(0.0f) : x;
}

template <typename T>
METAL_FUNC T silu(T x) {
  return T(float(x) * float(sigmoid_of(x)));
}

template <typename T>
METAL_FUNC T gelu(T x) {
  const T scaled = T(float(x) / float(T(M_SQRT2_F)));
  const T sum = T(1.0f + float(T(error_function(float(scaled)))));
  return T(float(T(float(x) * float(sum))) * 0.5f);
}

template <typename T>
METAL_FUNC T gelu_tanh(T x_) {
  const float x = float(x_);
  const T cube = T(x * x * x);
  const T cubic = T(float(T(0.044715f)) * float(cube));
  const T inner = T(float(T(0.7978846f)) * float(T(x + float(cubic))));
  const T outer = T(1.0f + float(T(precise::tanh(float(inner)))));
  return T(float(T(0.5f * x)) * float(outer));
}

METAL_FUNC float silu_slope(float x) {
  const float s = sigmoid_of(x);
  return s * fma(x, 1.0f - s, 1.0f);
}

METAL_FUNC float gelu_slope(float x) {
  const float below = fma(0.5f, error_function(x * M_SQRT1_2_F), 0.5f);
  return fma(x, precise::exp(-0.5f * x * x) * 0.3989423f, below);
}

METAL_FUNC float gelu_tanh_slope(float x) {
  const float square = x * x;
  const float v = 1.5957691f * x * fma(square, 0.044715f, 1.0f);
  const float slope = 1.5957691f * fma(square, 3.0f * 0.044715f, 1.0f);
  const float e = precise::exp(-fabs(v));
  const float larger = 1.0f / (1.0f + e); // of the logistic function of v and its complement
  const float smaller = e * larger;
  return fma(x * (smaller * larger), slope, x < 0.0f ? smaller : larger);
}

/** The derivative of an activation of one input, rounded to T. */
template <typename T, ActivationKind KIND>
METAL_FUNC float slope_of(T x_) {
  const float x = float(x_);
  switch (KIND) {
    case ACTIVATION_GELU:
      return float(T(gelu_slope(x)));
    case ACTIVATION_GELU_TANH:
      return float(T(gelu_tanh_slope(x)));
    case ACTIVATION_SILU:
      return float(T(silu_slope(x)));
    default:
      return x > 0.0f ? 1.0f : 0.0f;
  }
}

/** `kind` is the same for all threads, so all threads take the same branch. */
template <typename T>
METAL_FUNC T activated(uint kind, T x) {
  switch (kind) {
    case ACTIVATION_RELU:
      return relu(x);
    case ACTIVATION_GELU:
      return gelu(x);
    case ACTIVATION_GELU_TANH:
      return gelu_tanh(x);
    case ACTIVATION_SILU:
      return silu(x);
    default:
      return x;
  }
}

template <typename T, ActivationKind KIND>
METAL_FUNC T combined(T a, T b) {
  switch (KIND) {
    case ACTIVATION_SWIGLU:
      return T(float(silu(a)) * float(b));
    case ACTIVATION_GEGLU:
      return T(float(gelu(a)) * float(b));
    case ACTIVATION_GEGLU_TANH:
      return T(float(gelu_tanh(a)) * float(b));
    case ACTIVATION_ADD_RELU:
      return relu(T(float(a) + float(b)));
    case ACTIVATION_MUL_RELU:
      return relu(T(float(a) * float(b)));
    case ACTIVATION_GELU_SLOPE:
      return T(slope_of<T, ACTIVATION_GELU>(a) * float(b));
    case ACTIVATION_GELU_TANH_SLOPE:
      return T(slope_of<T, ACTIVATION_GELU_TANH>(a) * float(b));
    case ACTIVATION_SILU_SLOPE:
      return T(slope_of<T, ACTIVATION_SILU>(a) * float(b));
    default: // ACTIVATION_RELU_SLOPE
      return T(slope_of<T, ACTIVATION_RELU>(a) * float(b));
  }
}

/** The gradients of `combined` with respect to a and b, given the gradient of its result. */
template <typename T, ActivationKind KIND>
METAL_FUNC void combined_gradients(T a, T b, float g, thread T& of_a, thread T& of_b) {
  switch (KIND) {
    case ACTIVATION_SWIGLU:
      of_a = T(slope_of<T, ACTIVATION_SILU>(a) * (float(b) * g));
      of_b = T(float(silu(a)) * g);
      return;
    case ACTIVATION_GEGLU:
      of_a = T(slope_of<T, ACTIVATION_GELU>(a) * (float(b) * g));
      of_b = T(float(gelu(a)) * g);
      return;
    case ACTIVATION_GEGLU_TANH:
      of_a = T(slope_of<T, ACTIVATION_GELU_TANH>(a) * (float(b) * g));
      of_b = T(float(gelu_tanh(a)) * g);
      return;
    case ACTIVATION_ADD_RELU:
      of_a = T(slope_of<T, ACTIVATION_RELU>(T(float(a) + float(b))) * g);
      of_b = of_a;
      return;
    default: { // ACTIVATION_MUL_RELU
      const float kept = slope_of<T, ACTIVATION_RELU>(T(float(a) * float(b))) * g;
      of_a = T(kept * float(b));
      of_b = T(kept * float(a));
    }
  }
}
