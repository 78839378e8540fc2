use crate::array::Array;
use crate::error::Result;
use crate::ffi::ops::bridge as ffi;
use crate::tune::{chosen, rows};

/// The logarithm of a sum of exponentials over the last axis:
/// `y = log(sum(exp(x - max(x)))) + max(x)`.
///
/// `x` is `[..., n]` with n >= 1; the result is `[...]`, of the type of `x` (integers become
/// float32). The kernel sums in float32 and rounds once. If the maximum of a row is infinite, the
/// result is this maximum, as in MLX's built-in op.
///
/// Differentiable.
///
/// # Cost
///
/// One kernel moves `r n + r` elements for r rows, and computes `4 r n` operations, of which r n
/// are exponentials. The gradient takes one kernel. It keeps `x` in memory, but no softmax.
///
/// # Errors
///
/// Returns an error if `x` is a scalar, is float64 or complex, or has a last axis without elements.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[1000.0f32, 1000.0], &[2])?;
/// let y = ops::logsumexp(&x)?.to_vec::<f32>()?;
/// assert_eq!(y, [1000.0 + 2f32.ln()]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn logsumexp(x: &Array) -> Result<Array> {
    chosen("logsumexp", || rows(x), ffi::logsumexp(x.raw(), false))
}

/// [`logsumexp`], but the result keeps the last axis, with length 1: `[..., n]` becomes `[..., 1]`.
///
/// # Cost
///
/// One kernel moves `r n + r` elements, as in [`logsumexp`].
///
/// # Errors
///
/// Returns an error for arrays that [`logsumexp`] refuses.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::zeros::<f32>((2, 3))?;
/// assert_eq!(ops::logsumexp_keepdims(&x)?.shape(), [2, 1]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn logsumexp_keepdims(x: &Array) -> Result<Array> {
    chosen("logsumexp", || rows(x), ffi::logsumexp(x.raw(), true))
}

/// The logarithm of the softmax over the last axis: `y = x - logsumexp(x)`.
///
/// `x` is `[..., n]` with n >= 1; the result has the shape and type of `x` (integers become
/// float32). The result of `logsumexp` is rounded to that type before it is subtracted, as in MLX's
/// composition of ops. The largest element stays the largest. In a 16-bit type the rounding of
/// `logsumexp` limits the accuracy of all results.
///
/// Differentiable.
///
/// # Cost
///
/// One kernel moves `2 r n` elements for r rows, and computes `5 r n` operations, of which r n are
/// exponentials. The gradient takes one kernel. It keeps `x` in memory, but no softmax.
///
/// # Errors
///
/// Returns an error if `x` is a scalar, is float64 or complex, or has a last axis without elements.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[0.0f32, 3f32.ln()], &[2])?;
/// let y = ops::log_softmax(&x)?.to_vec::<f32>()?;
/// assert!((y[0] - 0.25f32.ln()).abs() < 1e-6 && (y[1] - 0.75f32.ln()).abs() < 1e-6);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn log_softmax(x: &Array) -> Result<Array> {
    chosen("log_softmax", || rows(x), ffi::log_softmax(x.raw()))
}
