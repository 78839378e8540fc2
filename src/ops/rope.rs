use crate::array::{Array, or_null};
use crate::error::Result;
use crate::ffi::ops::bridge as ffi;
use crate::tune::{chosen, rows};

/// Where a sequence starts: one position for all, or an integer array of one or of one for each
/// batch entry.
pub enum Offset<'a> {
    /// One position for every batch entry.
    Position(i32),
    /// An integer array of one element, or `[batch]`.
    Each(&'a Array),
}

impl From<i32> for Offset<'_> {
    fn from(position: i32) -> Self {
        Self::Position(position)
    }
}

impl<'a> From<&'a Array> for Offset<'a> {
    fn from(offsets: &'a Array) -> Self {
        Self::Each(offsets)
    }
}

impl Offset<'_> {
    pub(crate) fn to_array(&self) -> Result<Array> {
        match self {
            Self::Position(position) => Array::scalar(*position),
            Self::Each(offsets) => Ok((*offsets).clone()),
        }
    }
}

/// Rotary position embedding ([Su et al. 2021](https://arxiv.org/abs/2104.09864)): rotates pairs
/// of the first `dims` features of position t by `(t + offset) * scale / freq`.
///
/// `x` is `[batch, ..., time, features]` of rank 3 or more. The pairs are features `i` and
/// `i + dims / 2`, or with `traditional` features `2i` and `2i + 1`; features from `dims` on are
/// kept. Exactly one of `base` (`freq_i = base^(2i / dims)`) and `freqs` (`[dims / 2]`) is given.
///
/// On the CPU each step is rounded to the type of `x`, on the GPU only the result is, as in MLX's
/// built-in on each. Differentiable in `x`.
///
/// # Errors
///
/// Returns an error for rank below 3, odd or too large `dims`, offsets of another shape or type,
/// both or neither of `base` and `freqs` or a type other than float32, float16 and bfloat16.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[1.0f32, 0.0], &[1, 1, 2])?;
/// let y = ops::rope(&x, 2, false, Some(10_000.0), 1.0, 1, None)?.to_vec::<f32>()?;
/// assert!((y[0] - 1f32.cos()).abs() < 1e-6 && (y[1] - 1f32.sin()).abs() < 1e-6);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn rope<'a>(
    x: &Array,
    dims: i32,
    traditional: bool,
    base: Option<f32>,
    scale: f32,
    offset: impl Into<Offset<'a>>,
    freqs: Option<&Array>,
) -> Result<Array> {
    let offset = offset.into().to_array()?;
    let base = base.as_ref().map_or(std::ptr::null(), |base| base as *const f32);
    // SAFETY: both pointers are null or those of borrowed values, which outlive the call.
    let built =
        unsafe { ffi::rope(x.raw(), dims, traditional, base, scale, offset.raw(), or_null(freqs)) };
    chosen("rope", || rows(x), built)
}
