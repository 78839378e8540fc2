use crate::array::{Array, or_null};
use crate::error::Result;
use crate::ffi::ops::bridge as ffi;
use crate::tune::{chosen, rows};

/// The position of the first row of a sequence: one for all batch entries, or one for each.
#[derive(Clone, Copy, Debug)]
pub enum Offset<'a> {
    /// One position for every batch entry.
    Position(i32),
    /// An array of integers of one element, or `[batch]` with a position for each batch entry.
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

impl Default for Offset<'_> {
    fn default() -> Self {
        Self::Position(0)
    }
}

impl Offset<'_> {
    pub(crate) fn to_array(self) -> Result<Array> {
        match self {
            Self::Position(position) => Array::scalar(position),
            Self::Each(offsets) => Ok(offsets.clone()),
        }
    }
}

/// The rotation of [`rope`]. `dims` has to be given; the other fields have the defaults of MLX's
/// models.
#[derive(Clone, Copy, Debug)]
pub struct Rope<'a> {
    /// The number of leading features that are rotated; even. Features after them do not change.
    pub dims: i32,
    /// Whether features `2i` and `2i + 1` make a pair, rather than `i` and `i + dims / 2`.
    pub traditional: bool,
    /// Sets `freq_i = base^(2i / dims)`; 10,000 by default. Exactly one of `base` and `freqs` is
    /// given.
    pub base: Option<f32>,
    /// Multiplies every position; 1 by default.
    pub scale: f32,
    /// The position of the first row; 0 by default.
    pub offset: Offset<'a>,
    /// The values `freq_i`, `[dims / 2]`: periods divided by 2 pi.
    pub freqs: Option<&'a Array>,
}

impl Default for Rope<'_> {
    fn default() -> Self {
        Self {
            dims: 0,
            traditional: false,
            base: Some(10_000.0),
            scale: 1.0,
            offset: Offset::default(),
            freqs: None,
        }
    }
}

/// Rotary position embedding ([Su et al. 2021](https://arxiv.org/abs/2104.09864)): rotates pairs
/// of the first `dims` features of position t by `(t + offset) * scale / freq`.
///
/// `x` is `[batch, ..., time, features]` of rank 3 or more, of float32, float16 or bfloat16; the
/// result has its shape and type. [`Rope`] says which features make a pair and what `freq` is.
///
/// On the CPU each step is rounded to the type of `x`, on the GPU only the result, as in MLX's
/// built-in. Differentiable in `x`.
///
/// # Cost
///
/// One kernel moves `2 s + 1` elements for an `x` of s and an offset, and computes `3 s` operations
/// beside an angle for each pair. The gradient is one kernel, which rotates back and keeps only the
/// offset.
///
/// # Errors
///
/// Returns an error for rank below 3, `dims` that are odd, below 2 or above the features, offsets
/// of another shape or type, both or neither of `base` and `freqs`, or another type.
///
/// ```
/// use mlx_primitives::ops::{self, Rope};
/// use mlx_primitives::Array;
///
/// let x = Array::from_slice(&[1.0f32, 0.0], &[1, 1, 2])?;
/// let y = ops::rope(&x, Rope { dims: 2, offset: 1.into(), ..Default::default() })?;
/// let y = y.to_vec::<f32>()?;
/// assert!((y[0] - 1f32.cos()).abs() < 1e-6 && (y[1] - 1f32.sin()).abs() < 1e-6);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn rope(x: &Array, rotation: Rope<'_>) -> Result<Array> {
    let Rope { dims, traditional, base, scale, offset, freqs } = rotation;
    let offset = offset.to_array()?;
    let base = base.as_ref().map_or(std::ptr::null(), |base| base as *const f32);
    // SAFETY: both pointers are null or belong to borrowed values, which outlive the call.
    let built =
        unsafe { ffi::rope(x.raw(), dims, traditional, base, scale, offset.raw(), or_null(freqs)) };
    chosen("rope", || rows(x), built)
}
