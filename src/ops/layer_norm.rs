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
/// (all zeros). The result has the shape of `x` and the type that `x`, `weight` and, if there is
/// a weight, `bias` promote to. The normalized `x` is rounded to that type before it is multiplied
/// by the weight, and the product before the bias is added, as in MLX's composition. (MLX's own
/// Metal kernel may fuse that multiplication and addition, and then rounds once.)
///
/// Differentiable in `x`, `weight` and `bias`.
///
/// # Cost
///
/// One kernel moves `2 r n + 2 n` elements for r rows, and computes `7 r n` operations. The
/// gradient in `x` is one kernel. With the gradient of the weight or bias there are two for rows of
/// up to 8192 elements, else three. It keeps `x` and the weight, and no statistics of rows.
///
/// # Errors
///
/// Returns an error for a scalar, an axis of no elements, a weight or bias of another shape or a
/// type other than float32, float16 and bfloat16.
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
