use super::{Array, IntoAxes, IntoShape, from_list, require_addressable, to_list};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ffi::bridge as ffi;

/// Shapes, types and selections. All of them are lazy, and most of them do not copy.
impl Array {
    /// The elements, in row-major order, in another shape with the same number of elements. One
    /// length may be -1, which MLX computes from the others. Copies only if the strides do not
    /// allow a view.
    ///
    /// # Errors
    ///
    /// [`Error::Mlx`] if the shape has another number of elements, or more than one -1.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::zeros::<f32>((2, 6))?;
    /// assert_eq!(x.reshape((3, -1))?.shape(), [3, 4]);
    /// assert!(x.reshape((5, 5)).is_err());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn reshape(&self, shape: impl IntoShape) -> Result<Array> {
        Array::from_bridge(ffi::reshape(self.raw(), shape.dims().as_ref()))
    }

    /// The axes in the given order: axis `i` of the result is axis `axes[i]` of the array. A view.
    ///
    /// # Errors
    ///
    /// [`Error::Mlx`] unless `axes` names every axis of the array exactly once.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::arange::<i32>(0.0, 6.0, 1.0)?.reshape((2, 3))?;
    /// assert_eq!(x.transpose((1, 0))?.to_vec::<i32>()?, [0, 3, 1, 4, 2, 5]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn transpose(&self, axes: impl IntoAxes) -> Result<Array> {
        Array::from_bridge(ffi::transpose(self.raw(), &axes.axes(self.ndim())))
    }

    /// The transposed matrix, or stack of matrices: `[..., m, n]` becomes `[..., n, m]`. A view.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] for a rank below 2.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1i32, 2, 3, 4, 5, 6], (2, 3))?;
    /// assert_eq!(x.t()?.shape(), [3, 2]);
    /// assert_eq!(x.t()?.to_vec::<i32>()?, [1, 4, 2, 5, 3, 6]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn t(&self) -> Result<Array> {
        let rank = self.ndim() as i32;
        if rank < 2 {
            return Err(Error::shape("t", "rank 2 or more", self.shape()));
        }
        let mut axes: Vec<i32> = (0..rank).collect();
        axes.swap(rank as usize - 2, rank as usize - 1);
        self.transpose(axes)
    }

    /// The elements repeated along the axes of length 1, and along new axes in front, to give
    /// `shape`. A view.
    ///
    /// # Errors
    ///
    /// [`Error::Mlx`] if an axis that is not of length 1 has another length in `shape`, or
    /// `shape` has fewer axes; [`Error::Shape`] for a negative length, or for 2^47 bytes or more.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1i32, 2], (2, 1))?;
    /// assert_eq!(x.broadcast_to((2, 3))?.to_vec::<i32>()?, [1, 1, 1, 2, 2, 2]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn broadcast_to(&self, shape: impl IntoShape) -> Result<Array> {
        let shape = shape.dims();
        let shape = shape.as_ref();
        require_addressable("broadcast_to", shape, self.dtype())?;
        Array::from_bridge(ffi::broadcast_to(self.raw(), shape))
    }

    /// The array with new axes of length 1, which are `axes` of the result. A view.
    ///
    /// # Errors
    ///
    /// [`Error::Mlx`] for an axis outside the rank of the result, or named twice.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::zeros::<f32>((2, 3))?;
    /// assert_eq!(x.expand_dims(1)?.shape(), [2, 1, 3]);
    /// assert_eq!(x.expand_dims((0, -1))?.squeeze(0)?.shape(), [2, 3, 1]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn expand_dims(&self, axes: impl IntoAxes) -> Result<Array> {
        Array::from_bridge(ffi::expand_dims(self.raw(), &axes.axes(self.ndim())))
    }

    /// The array without `axes`, which have length 1. A view. See [`Array::expand_dims`].
    ///
    /// # Errors
    ///
    /// [`Error::Mlx`] for an axis outside the rank, named twice, or of another length than 1.
    pub fn squeeze(&self, axes: impl IntoAxes) -> Result<Array> {
        Array::from_bridge(ffi::squeeze(self.raw(), &axes.axes(self.ndim())))
    }

    /// The elements converted to another type; the array itself if it has that type. Conversion to
    /// integers rounds toward zero. In a conversion to bools, numbers other than zero become true.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX cannot be started, for example because the system has no more
    /// threads.
    ///
    /// ```
    /// # use mlx_primitives::{Array, Dtype};
    /// let x = Array::from_slice(&[1.5f32], &[1])?.astype(Dtype::Int32)?;
    /// assert_eq!(x.to_vec::<i32>()?, [1]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn astype(&self, dtype: Dtype) -> Result<Array> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        Array::from_bridge(ffi::astype(self.raw(), dtype.into()))
    }

    /// The array in row-major order without gaps, copied only if its layout differs.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX cannot be started, for example because the system has no more
    /// threads.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1i32, 2, 3, 4], (2, 2))?.t()?.contiguous()?;
    /// x.eval()?;
    /// assert!(x.is_row_contiguous());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn contiguous(&self) -> Result<Array> {
        Array::from_bridge(ffi::contiguous(self.raw()))
    }

    /// Selects slices of `axis` by `indices`, an array of integers of any shape. The shape of the
    /// indices replaces the axis: `[..., n, ...]` becomes `[..., indices.shape(), ...]`.
    ///
    /// Negative indices count from the end; indices outside the axis select its nearest slice.
    /// Differentiable in the array. If the array is a floating-point matrix and `axis` is 0, as for
    /// an embedding, a kernel of this crate computes the gradient. For each row, it adds the
    /// gradients of the row's copies in float32, in the order of the indices, and rounds once.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for an axis outside the rank, [`Error::Shape`] for an axis without
    /// elements, [`Error::Dtype`] for indices that are not integers.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::arange::<f32>(0.0, 4.0, 1.0)?;
    /// let i = Array::from_slice(&[3u32, 0], &[2])?;
    /// assert_eq!(x.take(&i, 0)?.to_vec::<f32>()?, [3.0, 0.0]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn take(&self, indices: &Array, axis: i32) -> Result<Array> {
        let indices = self.in_bounds("take", indices, axis)?;
        Array::from_bridge(ffi::take(self.raw(), indices.raw(), axis))
    }

    /// Selects elements of each row along `axis` by the indices for that row. The array and
    /// `indices` have the same rank, and broadcast along all axes other than `axis`. Along `axis`,
    /// the result is as long as `indices`.
    ///
    /// Indices are as for [`Array::take`].
    ///
    /// # Errors
    ///
    /// Returns an error in the cases of [`Array::take`], and [`Error::Mlx`] for indices of another
    /// rank, or of a shape that does not broadcast.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1i32, 2, 3, 4], (2, 2))?;
    /// let i = Array::from_slice(&[1u32, 0], (2, 1))?;
    /// assert_eq!(x.take_along_axis(&i, 1)?.to_vec::<i32>()?, [2, 3]);
    /// let y = x.put_along_axis(&i, &Array::scalar(9i32)?, 1)?;
    /// assert_eq!(y.to_vec::<i32>()?, [1, 9, 9, 4]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn take_along_axis(&self, indices: &Array, axis: i32) -> Result<Array> {
        let indices = self.in_bounds("take_along_axis", indices, axis)?;
        Array::from_bridge(ffi::take_along_axis(self.raw(), indices.raw(), axis))
    }

    /// A copy of the array with some elements replaced: in each row along `axis`, the elements at
    /// `indices` become `values`. The values broadcast to the shape of the indices, and are
    /// converted to the array's type.
    ///
    /// Indices are as for [`Array::take`]; [`Array::take_along_axis`] has an example.
    ///
    /// # Errors
    ///
    /// Returns an error in the cases of [`Array::take_along_axis`], and [`Error::Mlx`] for values
    /// that do not broadcast.
    pub fn put_along_axis(&self, indices: &Array, values: &Array, axis: i32) -> Result<Array> {
        let indices = self.in_bounds("put_along_axis", indices, axis)?;
        Array::from_bridge(ffi::put_along_axis(self.raw(), indices.raw(), values.raw(), axis))
    }

    /// Clamps the indices to the axis, since MLX does not check them.
    pub(crate) fn in_bounds(&self, op: &str, indices: &Array, axis: i32) -> Result<Array> {
        let dim = self.dim(axis)?;
        if dim == 0 {
            return Err(Error::shape(op, "an axis of at least one element", self.shape()));
        }
        // 64-bit indices may not fit into 32 bits, so they are clamped before the conversion. Types
        // of 8 or 16 bits may not hold `dim`, so they are clamped after it.
        match indices.dtype() {
            Dtype::Uint64 => indices.minimum(dim - 1)?.astype(Dtype::Uint32),
            Dtype::Int64 => indices.minimum(dim - 1)?.maximum(-dim)?.astype(Dtype::Int32),
            Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 => {
                indices.astype(Dtype::Uint32)?.minimum(dim - 1)
            }
            Dtype::Int8 | Dtype::Int16 | Dtype::Int32 => {
                indices.astype(Dtype::Int32)?.minimum(dim - 1)?.maximum(-dim)
            }
            other => Err(Error::dtype(op, "integer indices", other)),
        }
    }

    /// The array itself, which derivatives treat as a constant.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX cannot be started, for example because the system has no more
    /// threads.
    ///
    /// ```
    /// # use mlx_primitives::{Array, transforms};
    /// let x = Array::scalar(3.0f32)?;
    /// let slope = transforms::grad(|x| x.multiply(x.stop_gradient()?), &x)?;
    /// assert_eq!(slope.item::<f32>()?, 3.0); // and not 6
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn stop_gradient(&self) -> Result<Array> {
        Array::from_bridge(ffi::stop_gradient(self.raw()))
    }

    /// Views of the elements before `place` along an axis, and of the elements from `place` on.
    /// The derivative of both views together is one [`concatenate`]. Two slices would instead need
    /// two gradients of the array's full shape.
    ///
    /// # Errors
    ///
    /// Returns an error for an axis outside the rank, and for a place outside the axis.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let [before, after] = Array::from_slice(&[1, 2, 3, 4, 5], 5)?.split_at(2, 0)?;
    /// assert_eq!(before.to_vec::<i32>()?, [1, 2]);
    /// assert_eq!(after.to_vec::<i32>()?, [3, 4, 5]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn split_at(&self, place: i32, axis: i32) -> Result<[Array; 2]> {
        let end = self.dim(axis)?;
        let refuse = || Error::argument("split_at", format_args!("0 to {end}, got {place}"));
        if !(0..=end).contains(&place) {
            return Err(refuse());
        }
        from_list(&*ffi::split_at(self.raw(), place, axis)?).try_into().map_err(|_| refuse())
    }
}

/// Joins arrays along `axis`, an axis of every array: `[..., a, ...]` and `[..., b, ...]` become
/// `[..., a + b, ...]`, of the type that all promote to.
///
/// # Errors
///
/// [`Error::Argument`] for an empty list; [`Error::Mlx`] for an axis outside the rank, or for
/// shapes that differ along other axes.
///
/// ```
/// # use mlx_primitives::{Array, concatenate};
/// let x = Array::ones::<f32>(&[1, 2])?;
/// assert_eq!(concatenate(&[&x, &x], 0)?.shape(), [2, 2]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn concatenate(arrays: &[&Array], axis: i32) -> Result<Array> {
    if arrays.is_empty() {
        return Err(Error::argument("concatenate", "at least one array, got none"));
    }
    Array::from_bridge(ffi::concatenate(&to_list(arrays.iter().copied()), axis))
}

/// Joins arrays of one shape along a new axis, which is `axis` of the result: `n` arrays `[a, b]`
/// become `[n, a, b]` for axis 0, of the type that all promote to.
///
/// # Errors
///
/// [`Error::Argument`] for an empty list; [`Error::Mlx`] for an axis outside the rank of the
/// result, or for different shapes.
///
/// ```
/// # use mlx_primitives::{Array, stack};
/// let (x, y) = (Array::zeros::<f32>(3)?, Array::ones::<f32>(3)?);
/// assert_eq!(stack(&[&x, &y], 0)?.shape(), [2, 3]);
/// assert_eq!(stack(&[&x, &y], -1)?.shape(), [3, 2]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn stack(arrays: &[&Array], axis: i32) -> Result<Array> {
    if arrays.is_empty() {
        return Err(Error::argument("stack", "at least one array, got none"));
    }
    Array::from_bridge(ffi::stack(&to_list(arrays.iter().copied()), axis))
}

/// The elements of `a` where `condition` is true, and the elements of `b` elsewhere. All three
/// broadcast to one shape; the result has the type that `a` and `b` promote to.
///
/// # Errors
///
/// [`Error::Mlx`] for shapes that do not broadcast.
///
/// ```
/// # use mlx_primitives::{Array, select};
/// let x = Array::from_slice(&[-1.0f32, 2.0], &[2])?;
/// let relu = select(&x.greater(0.0)?, &x, &Array::scalar(0.0f32)?)?;
/// assert_eq!(relu.to_vec::<f32>()?, [0.0, 2.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn select(condition: &Array, a: &Array, b: &Array) -> Result<Array> {
    Array::from_bridge(ffi::select(condition.raw(), a.raw(), b.raw()))
}
