//! Derivatives of the activations, in f32.

use crate::math::{erf_and_exp, exp_nonpositive, sigmoid};
use crate::simd::F32x16;

/// The derivative of relu: 1 for x above 0, otherwise 0.
#[inline(always)]
pub fn relu_slope<V: F32x16>(x: V) -> V {
    // The derivative at NaN is 0, because NaN is not above 0.
    let above = (V::splat(0.0) - x.max(V::splat(0.0))).to_bits();
    let above = V::and_int(above, V::splat_int(i32::MIN));
    V::select(above, V::splat(1.0), V::splat(0.0))
}

/// The derivative of silu: `s * (1 + x * (1 - s))`, where `s` is the sigmoid of x.
#[inline(always)]
pub fn silu_slope<V: F32x16>(x: V) -> V {
    let one = V::splat(1.0);
    let s: V = sigmoid::<V, f32>(x);
    s * x.mul_add(one - s, one)
}

/// The derivative of gelu: `(1 + erf(x / sqrt 2)) / 2 + x * exp(-x² / 2) / sqrt(2 pi)`.
#[inline(always)]
pub fn gelu_slope<V: F32x16>(x: V) -> V {
    let half = V::splat(0.5);
    let (erf, exp) = erf_and_exp(x * V::splat(std::f32::consts::FRAC_1_SQRT_2));
    let density = exp * V::splat(0.398_942_3);
    x.mul_add(density, half.mul_add(erf, half))
}

/// The derivative of gelu with tanh. This gelu equals `x * s(v)`, where `s` is the sigmoid and `v =
/// 2 sqrt(2 / pi) * (x + 0.044715 x³)`. Its derivative is `s + x * s * (1 - s) * v'`.
#[inline(always)]
pub fn gelu_tanh_slope<V: F32x16>(x: V) -> V {
    let (one, factor) = (V::splat(1.0), V::splat(1.595_769_2));
    let square = x * x;
    let v = factor * x * square.mul_add(V::splat(0.044_715), one);
    let slope = factor * square.mul_add(V::splat(3.0 * 0.044_715), one);
    let e = exp_nonpositive(V::splat(0.0) - v.abs());
    let larger = one / (one + e); // the larger of s and 1 - s
    let smaller = e * larger;
    let below = V::and_int(x.to_bits(), V::splat_int(i32::MIN));
    let s = V::select(below, smaller, larger);
    (x * (smaller * larger)).mul_add(slope, s)
}
