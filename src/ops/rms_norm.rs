use crate::array::{Array, or_null};
use crate::error::Result;
use crate::ffi::ops::bridge as ffi;
use crate::tune::{Call, chosen};

/// Root mean square layer normalization over the last axis
/// ([Zhang and Sennrich 2019](https://arxiv.org/abs/1910.07467)):
/// `y = x / sqrt(mean(x²) + eps) * weight`.
///
/// `x` is `[..., n]` with n >= 1, `weight` is `[n]` or `None` (all ones). The result has the shape
/// of `x` and the type that `x` and `weight` promote to. The normalized `x` is rounded to that type
/// before it is multiplied by the weight, as in MLX's built-in op.
///
/// Differentiable in `x` and `weight`.
///
/// # Cost
///
/// One kernel moves `2 r n + n` elements for r rows, and computes `4 r n` operations. The gradient
/// in `x` takes one kernel. With the weight's gradient there are two kernels for rows of up to 8192
/// elements, and three for longer rows. They keep `x` and the weight in memory, but not the mean
/// squares of the rows.
///
/// # Errors
///
/// Returns an error if `x` is a scalar, the last axis has no elements, the weight has another
/// shape, or a type is not float32, float16 or bfloat16.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[3.0f32, 4.0], &[1, 2])?;
/// let y = ops::rms_norm(&x, None, 0.0)?.to_vec::<f32>()?;
/// assert!((y[0] - 3.0 / 12.5f32.sqrt()).abs() < 1e-6);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn rms_norm(x: &Array, weight: Option<&Array>, eps: f32) -> Result<Array> {
    // The file cpp/ops/rms_norm.cpp builds the node.
    // SAFETY: the pointer is null or belongs to a borrowed array, which outlives the call.
    let built = unsafe { ffi::rms_norm(x.raw(), or_null(weight), eps) };
    chosen("rms_norm", || Call::of_rows(x), built)
}
