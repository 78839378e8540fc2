use crate::array::Array;
use crate::error::Result;
use crate::ffi::ops::bridge::{self as ffi, ReductionKind};
use crate::tune::{chosen, rows};

/// What a reduction runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axes {
    /// The last axis, of an array of rank 1 or more.
    Last,
    /// All axes, of an array of any rank.
    All,
}

fn reduce(name: &str, x: &Array, kind: ReductionKind, axes: Axes, keepdims: bool) -> Result<Array> {
    let all = axes == Axes::All;
    let built = ffi::reduction(x.raw(), kind, all, keepdims);
    chosen(name, || if all { 1 } else { rows(x) }, built)
}

/// The sum of the elements over the last axis or over all axes.
///
/// The result has the type of `x` and its shape without the reduced axes, which `keepdims` keeps
/// with extent 1. Terms are added in float32, in a tree, and the sum is rounded once: in sixteen
/// bits that is closer to the exact sum than MLX's CPU backend, which adds in the type itself.
/// Nothing sums to 0.
///
/// Differentiable.
///
/// # Errors
///
/// Returns an error for [`Axes::Last`] of a scalar or a type other than float32, float16 and
/// bfloat16.
///
/// ```
/// use mlx_primitives::{Array, ops, ops::Axes};
///
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// assert_eq!(ops::sum(&x, Axes::Last, false)?.to_vec::<f32>()?, [3.0, 7.0]);
/// assert_eq!(ops::sum(&x, Axes::All, true)?.shape(), [1, 1]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn sum(x: &Array, axes: Axes, keepdims: bool) -> Result<Array> {
    reduce("sum", x, ReductionKind::Sum, axes, keepdims)
}

/// The arithmetic mean over the last axis or over all axes: the float32 [`sum`] times the rounded
/// reciprocal of the number of elements, rounded once. The mean of nothing is NaN.
///
/// Shapes, types and errors are those of [`sum`]. Differentiable.
///
/// # Errors
///
/// Returns an error for what [`sum`] refuses.
///
/// ```
/// use mlx_primitives::{Array, ops, ops::Axes};
///
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// assert_eq!(ops::mean(&x, Axes::All, false)?.item::<f32>()?, 2.5);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn mean(x: &Array, axes: Axes, keepdims: bool) -> Result<Array> {
    reduce("mean", x, ReductionKind::Mean, axes, keepdims)
}

/// The largest element over the last axis or over all axes, NaN if any is NaN.
///
/// Shapes and types are those of [`sum`]. Differentiable; where several elements are largest, as
/// MLX's built-in is.
///
/// # Errors
///
/// Returns an error for what [`sum`] refuses, and for axes without elements to choose from.
///
/// ```
/// use mlx_primitives::{Array, ops, ops::Axes};
///
/// let x = Array::from_slice(&[1.0f32, 2.0, 4.0, 3.0], &[2, 2])?;
/// assert_eq!(ops::max(&x, Axes::Last, false)?.to_vec::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn max(x: &Array, axes: Axes, keepdims: bool) -> Result<Array> {
    reduce("max", x, ReductionKind::Max, axes, keepdims)
}

/// The sum of the squares over the last axis or over all axes.
///
/// Squares and sum are float32 and the sum is rounded once, so that only the result has to fit
/// into the type. Shapes, types and errors are those of [`sum`]. Differentiable.
///
/// # Errors
///
/// Returns an error for what [`sum`] refuses.
///
/// ```
/// use mlx_primitives::{Array, ops, ops::Axes};
///
/// let x = Array::from_slice(&[3.0f32, 4.0], &[1, 2])?;
/// assert_eq!(ops::sum_of_squares(&x, Axes::Last, false)?.to_vec::<f32>()?, [25.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn sum_of_squares(x: &Array, axes: Axes, keepdims: bool) -> Result<Array> {
    reduce("sum_of_squares", x, ReductionKind::SumOfSquares, axes, keepdims)
}

/// The Euclidean (L2) norm over the last axis or over all axes: the square root of the float32
/// [`sum_of_squares`], rounded once.
///
/// Shapes, types and errors are those of [`sum`]. Differentiable, but where it is 0.
///
/// # Errors
///
/// Returns an error for what [`sum`] refuses.
///
/// ```
/// use mlx_primitives::{Array, ops, ops::Axes};
///
/// let x = Array::from_slice(&[3.0f32, 4.0], &[1, 2])?;
/// assert_eq!(ops::norm(&x, Axes::All, false)?.item::<f32>()?, 5.0);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn norm(x: &Array, axes: Axes, keepdims: bool) -> Result<Array> {
    reduce("norm", x, ReductionKind::Norm, axes, keepdims)
}
