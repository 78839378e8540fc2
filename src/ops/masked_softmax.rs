use crate::array::{Array, or_null};
use crate::error::Result;
use crate::ffi::ops::bridge as ffi;
use crate::tune::{chosen, rows};

/// The scale and the masks that [`masked_softmax`] applies to scores. By default, the scale is 1
/// and there is no mask.
#[derive(Clone, Copy, Debug)]
pub struct MaskedSoftmax<'a> {
    /// Multiplies the scores.
    pub scale: f32,
    /// Either floats that are added to the scaled scores, or bools that are false where a score is
    /// hidden. The mask broadcasts to the shape of the scores.
    pub mask: Option<&'a Array>,
    /// Whether each query sees only the keys up to its own position. The last query is at the
    /// position of the last key.
    pub causal: bool,
    /// The size of a sliding window: a query sees this many keys, and the last of them is at the
    /// query's position. A window implies `causal`. With `None` there is no window.
    pub window: Option<i32>,
}

impl Default for MaskedSoftmax<'_> {
    fn default() -> Self {
        Self { scale: 1.0, mask: None, causal: false, window: None }
    }
}

/// Softmax of attention scores over the last axis:
/// `softmax(scale * x + mask)`, as in [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762).
///
/// `x` is `[..., queries, keys]` (a vector is one query) of float32, float16 or bfloat16; the
/// result has the shape and type of `x`. With `causal`, query `q` sees key `k` if
/// `k <= q + keys - queries`. With a window of `w`, it must also hold that
/// `k > q + keys - queries - w`. The kernel computes these two masks from the indices, and does not
/// read the scores that they hide. It reads `mask` in place, with any strides, if the mask has at
/// most nine axes and needs no conversion to the type of `x`.
///
/// The kernel rounds like MLX's composition of ops: scaled and masked scores are rounded to the
/// type of `x`, and other steps are float32. As in MLX's attention, a score that a mask of bools,
/// the causal mask or the window hides is replaced by the type's lowest finite number. So if a
/// query sees no key, all its results are `1 / keys`. If an additive mask is `-inf` for all keys of
/// a query, its results are NaN.
///
/// Differentiable in `x` and an additive mask.
///
/// # Cost
///
/// One kernel moves `2 r n` elements for r rows, and the elements of the mask if there is one. It
/// moves no score that a causal mask or a window hides. It computes `6 r n` operations, or `7 r n`
/// with an additive mask. The gradient in `x` takes one kernel, which reads the result and a mask
/// of bools; no scores are kept.
///
/// # Errors
///
/// Returns an error if `x` is a scalar, has no keys or has another type, if the mask does not
/// broadcast to `x`, if the type of the mask is neither bool nor promotes to the type of `x`, or if
/// the window is below 1.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let scores = Array::from_slice(&[1.0f32, 9.0, 1.0, 1.0], &[2, 2])?;
/// let causal = ops::MaskedSoftmax { causal: true, ..Default::default() };
/// let y = ops::masked_softmax(&scores, causal)?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 0.0, 0.5, 0.5]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn masked_softmax(x: &Array, options: MaskedSoftmax) -> Result<Array> {
    let MaskedSoftmax { scale, mask, causal, window } = options;
    let (sliding, window) = (window.is_some(), window.unwrap_or(0));
    // SAFETY: the pointer is null or belongs to a borrowed array, which outlives the call.
    let built =
        unsafe { ffi::masked_softmax(x.raw(), scale, or_null(mask), causal, sliding, window) };
    chosen("masked_softmax", || rows(x), built)
}
