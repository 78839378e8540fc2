use super::{Array, IntoAxes, IntoShape, require_addressable, to_list};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ffi::bridge as ffi;

/// Shapes and types: all of them lazy, most of them without a copy.
impl Array {
    /// The same elements in another shape; one dimension may be -1, to be worked out.
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

    /// The axes in the given order.
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

    /// The last two axes exchanged; an error below rank 2.
    pub fn t(&self) -> Result<Array> {
        let rank = self.ndim() as i32;
        if rank < 2 {
            return Err(Error::shape("t", "rank 2 or more", self.shape()));
        }
        let mut axes: Vec<i32> = (0..rank).collect();
        axes.swap(rank as usize - 2, rank as usize - 1);
        self.transpose(axes)
    }

    /// Repeated along dimensions of 1, and new ones in front, without a copy.
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

    /// With new dimensions of 1 at `axes` of the result.
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

    /// Without the dimensions of 1 at `axes`.
    pub fn squeeze(&self, axes: impl IntoAxes) -> Result<Array> {
        Array::from_bridge(ffi::squeeze(self.raw(), &axes.axes(self.ndim())))
    }

    /// Converted to another type; nothing to do if it has it.
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

    /// In row-major order, copied only if it is not already.
    pub fn contiguous(&self) -> Result<Array> {
        Array::from_bridge(ffi::contiguous(self.raw()))
    }

    /// The slices of `axis` at `indices`, an integer array of any shape, which replaces the axis.
    ///
    /// Negative indices count from the end; those outside the axis take its nearest slice.
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

    /// The elements at `indices` of each row along `axis`; shapes broadcast but for that axis.
    ///
    /// Indices as for [`Array::take`].
    pub fn take_along_axis(&self, indices: &Array, axis: i32) -> Result<Array> {
        let indices = self.in_bounds("take_along_axis", indices, axis)?;
        Array::from_bridge(ffi::take_along_axis(self.raw(), indices.raw(), axis))
    }

    /// A copy with `values` at `indices` of each row along `axis`.
    ///
    /// Indices as for [`Array::take`].
    pub fn put_along_axis(&self, indices: &Array, values: &Array, axis: i32) -> Result<Array> {
        let indices = self.in_bounds("put_along_axis", indices, axis)?;
        Array::from_bridge(ffi::put_along_axis(self.raw(), indices.raw(), values.raw(), axis))
    }

    /// Indices that MLX, which does not check them, cannot follow out of the axis.
    fn in_bounds(&self, op: &str, indices: &Array, axis: i32) -> Result<Array> {
        let dim = self.dim(axis)?;
        if dim == 0 {
            return Err(Error::shape(op, "an axis of at least one element", self.shape()));
        }
        // Within the axis first where the type is wider than what MLX takes, else after.
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

    /// The same values, constant to derivatives.
    pub fn stop_gradient(&self) -> Result<Array> {
        Array::from_bridge(ffi::stop_gradient(self.raw()))
    }
}

/// Joins arrays along an axis they have; an error for none.
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

/// Joins arrays of one shape along a new axis; an error for none.
pub fn stack(arrays: &[&Array], axis: i32) -> Result<Array> {
    if arrays.is_empty() {
        return Err(Error::argument("stack", "at least one array, got none"));
    }
    Array::from_bridge(ffi::stack(&to_list(arrays.iter().copied()), axis))
}

/// Elements of `a` where `condition` is true, of `b` elsewhere; all three broadcast.
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
