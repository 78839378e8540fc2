#include "bridge/activation.h"

#include "mlx-primitives/src/ffi/activation.rs.h"
#include "ops/activation.h"

namespace mlx_primitives::bridge {

static_assert(
    static_cast<unsigned>(ActivationKind::None) == ACTIVATION_NONE &&
    static_cast<unsigned>(ActivationKind::Relu) == ACTIVATION_RELU &&
    static_cast<unsigned>(ActivationKind::Gelu) == ACTIVATION_GELU &&
    static_cast<unsigned>(ActivationKind::GeluTanh) == ACTIVATION_GELU_TANH &&
    static_cast<unsigned>(ActivationKind::Silu) == ACTIVATION_SILU &&
    static_cast<unsigned>(ActivationKind::Swiglu) == ACTIVATION_SWIGLU &&
    static_cast<unsigned>(ActivationKind::Geglu) == ACTIVATION_GEGLU &&
    static_cast<unsigned>(ActivationKind::GegluTanh) == ACTIVATION_GEGLU_TANH &&
    static_cast<unsigned>(ActivationKind::AddRelu) == ACTIVATION_ADD_RELU &&
    static_cast<unsigned>(ActivationKind::MulRelu) == ACTIVATION_MUL_RELU);

namespace {

mlx_primitives::ActivationKind to_kind(ActivationKind kind) {
  return static_cast<mlx_primitives::ActivationKind>(kind);
}

} // namespace

Handle activation(ActivationKind kind, const MlxArray& x) {
  return handle(mlx_primitives::activation(to_kind(kind), x, here()));
}

Handle activation_of_two(ActivationKind kind, const MlxArray& a, const MlxArray& b) {
  return handle(mlx_primitives::activation(to_kind(kind), a, b, here()));
}

Handle affine(const MlxArray& x, const MlxArray& scale, const MlxArray& shift) {
  return handle(mlx_primitives::affine(x, scale, shift, here()));
}

} // namespace mlx_primitives::bridge
