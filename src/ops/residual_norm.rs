use cxx::{CxxVector, UniquePtr};

use crate::array::{Array, from_list, or_null};
use crate::error::{Error, Result};
use crate::ffi::bridge::MlxArray;
use crate::ffi::ops::bridge as ffi;

/// A residual connection, followed by RMS normalization, in one kernel: returns
/// `(h, rms_norm(h, weight, eps))` for `h = x + residual`.
///
/// `x` and `residual` are `[..., n]` of one shape, n >= 1; `weight` is `[n]` or `None` (all ones).
/// Both results have the shape, the type and every bit of MLX's `add` followed by
/// [`rms_norm`](crate::ops::rms_norm). If the type of the weight is wider than the type of
/// `x + residual`, the graph has two nodes instead of one.
///
/// Differentiable in `x`, `residual` and `weight`.
///
/// # Cost
///
/// One kernel moves `4 r n + n` elements for r rows, and computes `5 r n` operations. The gradient
/// runs the kernels of the gradient of [`rms_norm`](super::rms_norm). They also add the gradient of
/// `h`. The gradient keeps `h`, a result of the op, in memory.
///
/// # Errors
///
/// Returns an error if `x` is a scalar, the last axis has no elements, the residual or weight has
/// another shape, or a type is not float32, float16 or bfloat16.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[1.0f32, 2.0], &[1, 2])?;
/// let residual = Array::from_slice(&[2.0f32, 2.0], &[1, 2])?;
/// let (h, norm) = ops::rms_norm_residual(&x, &residual, None, 0.0)?;
/// assert_eq!(h.to_vec::<f32>()?, [3.0, 4.0]);
/// assert_eq!(norm.to_vec::<f32>()?, ops::rms_norm(&h, None, 0.0)?.to_vec::<f32>()?);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn rms_norm_residual(
    x: &Array,
    residual: &Array,
    weight: Option<&Array>,
    eps: f32,
) -> Result<(Array, Array)> {
    // SAFETY: the pointer is null or belongs to a borrowed array, which outlives the call.
    pair(unsafe { ffi::rms_norm_residual(x.raw(), residual.raw(), or_null(weight), eps) })
}

/// A residual connection, followed by layer normalization, in one kernel: returns
/// `(h, layer_norm(h, weight, bias, eps))` for `h = x + residual`.
///
/// Shapes, types and derivatives are as for [`rms_norm_residual`], with
/// [`layer_norm`](crate::ops::layer_norm) in place of the RMS normalization; `bias` is `[n]` or
/// `None` (all zeros).
///
/// # Cost
///
/// One kernel moves `4 r n + 2 n` elements for r rows, and computes `8 r n` operations. The
/// gradient runs the kernels of the gradient of [`layer_norm`](super::layer_norm). They also add
/// the gradient of `h`. The gradient keeps `h`, a result of the op, in memory.
///
/// # Errors
///
/// Returns an error for arguments that [`rms_norm_residual`] refuses, and if `bias` is not `[n]`.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[1.0f32, 2.0], &[1, 2])?;
/// let residual = Array::from_slice(&[0.0f32, 1.0], &[1, 2])?;
/// let (h, norm) = ops::layer_norm_residual(&x, &residual, None, None, 0.0)?;
/// assert_eq!(h.to_vec::<f32>()?, [1.0, 3.0]);
/// assert_eq!(norm.to_vec::<f32>()?, [-1.0, 1.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn layer_norm_residual(
    x: &Array,
    residual: &Array,
    weight: Option<&Array>,
    bias: Option<&Array>,
    eps: f32,
) -> Result<(Array, Array)> {
    let (weight, bias) = (or_null(weight), or_null(bias));
    // SAFETY: the pointers are null or belong to borrowed arrays, which outlive the call.
    pair(unsafe { ffi::layer_norm_residual(x.raw(), residual.raw(), weight, bias, eps) })
}

fn pair(
    result: std::result::Result<UniquePtr<CxxVector<MlxArray>>, cxx::Exception>,
) -> Result<(Array, Array)> {
    let [sum, norm] = from_list(&*result?)
        .try_into()
        .map_err(|_| Error::argument("residual_norm", "a sum and its normalization"))?;
    Ok((sum, norm))
}
