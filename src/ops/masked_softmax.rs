use crate::array::{Array, or_null};
use crate::error::Result;
use crate::ffi::ops::bridge as ffi;
use crate::tune::{chosen, rows};

/// The scale and the masks that [`masked_softmax`] applies to scores; none by default.
#[derive(Clone, Copy, Debug)]
pub struct MaskedSoftmax<'a> {
    /// Multiplies the scores.
    pub scale: f32,
    /// Floats that are added to the scaled scores, or bools that are true where a score counts. The
    /// mask broadcasts to the shape of the scores.
    pub mask: Option<&'a Array>,
    /// Whether each query sees only the keys up to its own position. The last query is at the
    /// position of the last key.
    pub causal: bool,
    /// The size of a sliding window: a query sees this many keys, up to its own position. Implies
    /// `causal`. With `None` there is no window.
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
/// result has its shape and type. Key `k` is visible to query `q` of a causal softmax if `k <= q +
/// keys - queries`, and in a window of `w` if also `k > q + keys - queries - w`. The kernel does
/// not store these two masks, nor read the scores that they hide. It reads `mask` in place, with
/// any strides.
///
/// Rounds as MLX's composition does: scaled and masked scores are rounded to the type of `x`, and
/// other steps are float32. A score that a mask of bools, the causal mask or the window hides
/// counts as the type's lowest finite number, as in MLX's attention: the result of a query that
/// sees no key is `1 / keys` everywhere, and NaN if an additive mask is `-inf` for all keys.
///
/// Differentiable in `x` and an additive mask.
///
/// # Cost
///
/// One kernel moves `2 r n` elements for r rows, the mask if there is one, and no score that a
/// causal mask or a window hides; it computes `6 r n` operations, or `7 r n` with a mask that is
/// added. The gradient is one kernel, which reads the result and keeps no scores.
///
/// # Errors
///
/// Returns an error for a scalar, an axis of no keys, another type, a mask that does not broadcast
/// to `x`, a mask of a type that is neither bool nor promotes to the type of `x`, and a window
/// below 1.
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
