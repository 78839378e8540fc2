//! Activations of single elements, each step rounded where MLX's composition rounds.

use super::element::Float;
use super::math::{erf_of_mlx, sigmoid, tanh};
use super::simd::F32x16;

/// What is applied to each element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    Relu,
    Gelu,
    GeluTanh,
    Silu,
}

impl Activation {
    #[inline(always)]
    pub(super) fn apply<V: F32x16, T: Float>(self, x: V) -> V {
        match self {
            Self::Relu => relu(x),
            Self::Gelu => gelu::<V, T>(x),
            Self::GeluTanh => gelu_tanh::<V, T>(x),
            Self::Silu => silu::<V, T>(x),
        }
    }
}

/// `max(x, 0)`, where -0 counts as 0 and NaN stays.
#[inline(always)]
pub(super) fn relu<V: F32x16>(x: V) -> V {
    let zero = V::splat(0.0);
    zero.max(x) + zero
}

/// `x * sigmoid(x)`
#[inline(always)]
pub(super) fn silu<V: F32x16, T: Float>(x: V) -> V {
    T::round(x * sigmoid::<V, T>(x))
}

/// `x * (1 + erf(x / sqrt 2)) / 2`
#[inline(always)]
pub(super) fn gelu<V: F32x16, T: Float>(x: V) -> V {
    let root: V = T::round(V::splat(std::f32::consts::SQRT_2));
    let erf = T::round(erf_of_mlx(T::round(x / root)));
    let y = T::round(x * T::round(V::splat(1.0) + erf));
    T::round(y * V::splat(0.5))
}

/// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³)))`
#[inline(always)]
pub(super) fn gelu_tanh<V: F32x16, T: Float>(x: V) -> V {
    let factor: V = T::round(V::splat(0.797_884_6));
    let cubic: V = T::round(V::splat(0.044_715));
    let cube: V = T::round(x * x * x);
    let inner = T::round(factor * T::round(x + T::round(cubic * cube)));
    let outer = T::round(V::splat(1.0) + T::round(tanh(inner)));
    T::round(T::round(V::splat(0.5) * x) * outer)
}
