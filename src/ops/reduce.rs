use crate::array::{Array, IntoAxes};
use crate::error::{Error, Result};
use crate::ffi::ops::bridge::{self as ffi, ReductionKind};
use crate::tune::{chosen, rows};

fn reduce(
    name: &str,
    x: &Array,
    kind: ReductionKind,
    axes: impl IntoAxes,
    keepdims: bool,
) -> Result<Array> {
    let all = all_axes(name, x.ndim() as i32, &axes)?;
    let built = ffi::reduction(x.raw(), kind, all, keepdims);
    chosen(name, || if all { 1 } else { rows(x) }, built)
}

/// Returns true if `axes` are all axes of an array of this rank, and false if they are its last
/// axis. For a vector, `..` is all axes, and an index is the last axis.
fn all_axes(name: &str, rank: i32, axes: &impl IntoAxes) -> Result<bool> {
    let listed = axes.axes(rank as usize);
    let from_first = |axis: &i32| if *axis < 0 { axis.saturating_add(rank) } else { *axis };
    let mut sorted: Vec<i32> = listed.iter().map(from_first).collect();
    sorted.sort_unstable();
    match sorted[..] {
        _ if axes.are_all() => Ok(true),
        [axis] if axis == rank - 1 => Ok(false),
        _ if sorted.iter().copied().eq(0..rank) => Ok(true),
        _ => {
            let expected = format_args!("the last axis or all {rank}, got {listed:?}");
            Err(Error::argument(name, expected))
        }
    }
}

/// The sum of the elements over the last axis (`-1`) or over all axes (`..`).
///
/// The result has the type of `x` and its shape without the reduced axes. The kernel adds the terms
/// in float32, in a tree, and rounds the sum once. For 16-bit types this is more accurate than
/// MLX's CPU backend, which adds in the 16-bit type. The sum of no elements is 0. [`Array::sum`]
/// takes any axes and types.
///
/// Differentiable.
///
/// # Cost
///
/// One kernel moves `r n + r` elements for r rows, and computes `r n` operations. If there are
/// fewer than 256 rows, of more than 16,384 elements each, the kernel splits the rows into pieces,
/// and a second kernel adds the sums of the pieces. The gradient is a view of the result's
/// gradient, so it keeps no array in memory.
///
/// # Errors
///
/// Returns an error for other axes, for the last axis of a scalar, or if the type is not float32,
/// float16 or bfloat16.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], (2, 2))?;
/// assert_eq!(ops::sum(&x, -1)?.to_vec::<f32>()?, [3.0, 7.0]);
/// assert_eq!(ops::sum(&x, ..)?.item::<f32>()?, 10.0);
/// assert!(ops::sum(&x, 0).is_err());
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn sum(x: &Array, axes: impl IntoAxes) -> Result<Array> {
    reduce("sum", x, ReductionKind::Sum, axes, false)
}

/// The arithmetic mean over the last axis or over all axes: the float32 [`sum`] times the
/// reciprocal of the number of elements. The reciprocal is rounded to float32, and the product is
/// rounded to the result's type. The mean of no elements is NaN.
///
/// Axes, shapes, types and errors are as for [`sum`]. Differentiable.
///
/// # Cost
///
/// One kernel moves `r n + r` elements, as in [`sum`]. The gradient does not keep `x` in memory.
///
/// # Errors
///
/// Returns an error for arguments that [`sum`] refuses.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], (2, 2))?;
/// assert_eq!(ops::mean(&x, ..)?.item::<f32>()?, 2.5);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn mean(x: &Array, axes: impl IntoAxes) -> Result<Array> {
    reduce("mean", x, ReductionKind::Mean, axes, false)
}

/// The largest element over the last axis or over all axes. It is NaN if any element is NaN.
///
/// Axes, shapes and types are as for [`sum`]. Differentiable. If several elements are largest, the
/// derivative is as for MLX's built-in op.
///
/// # Cost
///
/// One kernel moves `r n + r` elements, as in [`sum`]. The gradient keeps `x` and the result in
/// memory. It is one kernel on CPUs, and several of MLX's ops on GPUs.
///
/// # Errors
///
/// Returns an error for arguments that [`sum`] refuses, and for axes without elements.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[1.0f32, 2.0, 4.0, 3.0], (2, 2))?;
/// assert_eq!(ops::max(&x, -1)?.to_vec::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn max(x: &Array, axes: impl IntoAxes) -> Result<Array> {
    reduce("max", x, ReductionKind::Max, axes, false)
}

/// The sum of the squares over the last axis or over all axes.
///
/// The squares and their sum are float32, and the sum is rounded once. So the squares may be
/// outside the range of a 16-bit type. Axes, shapes, types and errors are as for [`sum`].
/// Differentiable.
///
/// # Cost
///
/// One kernel moves `r n + r` elements, as in [`sum`], and computes `2 r n` operations. The
/// gradient keeps `x` in memory. It is one kernel on CPUs, and several of MLX's ops on GPUs.
///
/// # Errors
///
/// Returns an error for arguments that [`sum`] refuses.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[3.0f32, 4.0], (1, 2))?;
/// assert_eq!(ops::sum_of_squares(&x, -1)?.to_vec::<f32>()?, [25.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn sum_of_squares(x: &Array, axes: impl IntoAxes) -> Result<Array> {
    reduce("sum_of_squares", x, ReductionKind::SumOfSquares, axes, false)
}

/// The Euclidean (L2) norm over the last axis or over all axes: the square root of the float32
/// [`sum_of_squares`], rounded once.
///
/// Axes, shapes, types and errors are as for [`sum`]. Differentiable except where the norm is 0.
///
/// # Cost
///
/// One kernel moves `r n + r` elements, as in [`sum`], and computes `2 r n` operations. The
/// gradient keeps `x` and the result in memory. It is one kernel on CPUs, and several of MLX's ops
/// on GPUs.
///
/// # Errors
///
/// Returns an error for arguments that [`sum`] refuses.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[3.0f32, 4.0], (1, 2))?;
/// assert_eq!(ops::norm(&x, ..)?.item::<f32>()?, 5.0);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn norm(x: &Array, axes: impl IntoAxes) -> Result<Array> {
    reduce("norm", x, ReductionKind::Norm, axes, false)
}

macro_rules! keeping {
    ($($name:ident, $keeping:ident => $kind:ident;)*) => {$(
        #[doc = concat!("[`", stringify!($name), "`], with the reduced axes kept, with length 1.")]
        ///
        /// # Cost
        ///
        #[doc = concat!("That of [`", stringify!($name), "`].")]
        ///
        /// # Errors
        ///
        #[doc = concat!("Returns an error for what [`", stringify!($name), "`] refuses.")]
        ///
        /// ```
        /// use mlx_primitives::{Array, ops};
        ///
        /// let x = Array::ones::<f32>((2, 3))?;
        #[doc = concat!("assert_eq!(ops::", stringify!($keeping), "(&x, -1)?.shape(), [2, 1]);")]
        #[doc = concat!("assert_eq!(ops::", stringify!($keeping), "(&x, ..)?.shape(), [1, 1]);")]
        /// # Ok::<(), mlx_primitives::Error>(())
        /// ```
        pub fn $keeping(x: &Array, axes: impl IntoAxes) -> Result<Array> {
            reduce(stringify!($name), x, ReductionKind::$kind, axes, true)
        }
    )*};
}

keeping! {
    max, max_keepdims => Max;
    mean, mean_keepdims => Mean;
    norm, norm_keepdims => Norm;
    sum, sum_keepdims => Sum;
    sum_of_squares, sum_of_squares_keepdims => SumOfSquares;
}
