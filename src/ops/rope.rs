use crate::array::{Array, or_null};
use crate::error::Result;
use crate::ffi::ops::bridge as ffi;
use crate::tune::{chosen, rows};

/// The position of the first row of a sequence: either one position for all batch entries, or a
/// separate position for each entry.
#[derive(Clone, Copy, Debug)]
pub enum Offset<'a> {
    /// One position for every batch entry.
    Position(i32),
    /// An array of integers: either one element, or `[batch]` with a position for each batch entry.
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

/// The options of [`rope`]. The caller must set `dims`. The other fields have the defaults of MLX's
/// layer `nn.RoPE`.
#[derive(Clone, Copy, Debug)]
pub struct Rope<'a> {
    /// The number of leading features to rotate, which must be even. Features after them do not
    /// change.
    pub dims: i32,
    /// If true, features `2i` and `2i + 1` form a pair. Otherwise features `i` and `i + dims / 2`
    /// form a pair.
    pub traditional: bool,
    /// Sets `freq_i = base^(2i / dims)`. The default is 10,000. Exactly one of `base` and `freqs`
    /// must be given.
    pub base: Option<f32>,
    /// The factor of all positions; 1 by default.
    pub scale: f32,
    /// The position of the first row; 0 by default.
    pub offset: Offset<'a>,
    /// The values `freq_i`, `[dims / 2]`, in place of `base`. Each is the period of a pair in
    /// positions, divided by 2 pi.
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
/// result has the shape and type of `x`. [`Rope`] defines the pairs of features and `freq`.
///
/// As in MLX's built-in op, each step is rounded to the type of `x` on the CPU, and only the result
/// is rounded on the GPU. Differentiable in `x`.
///
/// # Cost
///
/// One kernel moves `2 s + 1` elements for an `x` of s elements and one offset. It computes `3 s`
/// operations, and also the angle of each pair. The gradient takes one kernel, which rotates in the
/// other direction. It keeps only the offset and `freqs` in memory.
///
/// # Errors
///
/// Returns an error if `x` has a rank below 3 or another type, if `dims` is odd, below 2 or above
/// the number of features, if the offset has another shape or type, or if not exactly one of `base`
/// and `freqs` is given.
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
