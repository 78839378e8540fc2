use crate::array::Array;
use crate::error::Result;
use crate::ffi::ops::bridge as ffi;
use crate::tune::{chosen, rows};

/// Softmax over the last axis: `y = exp(x - max(x)) / sum(exp(x - max(x)))`.
///
/// `x` is `[..., n]` with n >= 1; the result has the shape and type of `x` (integers become
/// float32). The kernel always accumulates in float32, like MLX's built-in op with `precise`.
///
/// Differentiable.
///
/// # Cost
///
/// One kernel moves `2 r n` elements for r rows, and computes `5 r n` operations, of which r n are
/// exponentials. The gradient takes one kernel. It keeps only the result in memory.
///
/// # Errors
///
/// Returns an error if `x` is a scalar, is float64 or complex, or has a last axis without elements.
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
