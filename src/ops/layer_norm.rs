use crate::array::{Array, or_null};
use crate::error::Result;
use crate::ffi::ops::bridge as ffi;
use crate::tune::{chosen, rows};

/// Layer normalization over the last axis
/// ([Ba, Kiros and Hinton 2016](https://arxiv.org/abs/1607.06450)):
/// `y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, where `var(x)` is
/// `sum((x - mean(x))²) / n`.
///
/// `x` is `[..., n]` with n >= 1; `weight` is `[n]` or `None` (all ones), `bias` is `[n]` or `None`
/// (all zeros). The result has the shape of `x`. Its type results from the promotion of `x`,
/// `weight` and, if there is a weight, `bias`. As in MLX's composition of ops, the normalized `x`
/// is rounded to that type before it is multiplied by the weight, and the product is rounded before
/// the bias is added. (MLX's own Metal kernel may fuse the multiplication and the addition, and
/// then rounds once.)
///
/// Differentiable in `x`, `weight` and `bias`.
///
/// # Cost
///
/// One kernel moves `2 r n + 2 n` elements for r rows, and computes `7 r n` operations. The
/// gradient in `x` takes one kernel. With the gradient of the weight or bias there are two kernels
/// for rows of up to 8192 elements, and three for longer rows. They keep `x` and the weight in
/// memory, but not the mean and variance of the rows.
///
/// # Errors
///
/// Returns an error if `x` is a scalar, the last axis has no elements, the weight or bias has
/// another shape, or a type is not float32, float16 or bfloat16.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[1.0f32, 3.0], &[1, 2])?;
/// let weight = Array::from_slice(&[2.0f32, 2.0], &[2])?;
/// let bias = Array::from_slice(&[10.0f32, 20.0], &[2])?;
/// let y = ops::layer_norm(&x, Some(&weight), Some(&bias), 0.0)?;
/// assert_eq!(y.to_vec::<f32>()?, [8.0, 22.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn layer_norm(
    x: &Array,
    weight: Option<&Array>,
    bias: Option<&Array>,
    eps: f32,
) -> Result<Array> {
    // SAFETY: the pointers are null or belong to borrowed arrays, which outlive the call.
    let built = unsafe { ffi::layer_norm(x.raw(), or_null(weight), or_null(bias), eps) };
    chosen("layer_norm", || rows(x), built)
}
