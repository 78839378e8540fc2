use crate::array::Array;
use crate::error::Result;
use crate::ffi::ops::bridge as ffi;
use crate::tune::{chosen, rows};

/// Softmax over the last axis: `y = exp(x - max(x)) / sum(exp(x - max(x)))`.
///
/// `x` is `[..., n]` with n >= 1; the result has its shape and type (integers become float32).
/// Always accumulated in float32, as by MLX's built-in with `precise`.
///
/// Differentiable.
///
/// # Cost
///
/// One kernel moves `2 r n` elements for r rows, and computes `5 r n` operations, of which r n are
/// exponentials. The gradient is one kernel, which reads the result again and keeps nothing else.
///
/// # Errors
///
/// Returns an error for a scalar, an axis of no elements, float64 or complex.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[0.0f32, 0.0, f32::NEG_INFINITY], &[3])?;
/// assert_eq!(ops::softmax(&x)?.to_vec::<f32>()?, [0.5, 0.5, 0.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn softmax(x: &Array) -> Result<Array> {
    chosen("softmax", || rows(x), ffi::softmax(x.raw()))
}
