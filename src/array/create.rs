use super::{Array, IntoShape, require_addressable};
use crate::dtype::{Dtype, Element, as_bytes};
use crate::error::{Error, Result};
use crate::ffi::bridge as ffi;

impl Array {
    /// An array of `shape` with the given elements in row-major order.
    ///
    /// An error if the shape does not hold exactly that many elements.
    ///
    /// ```
    /// # use mlx_primitives::{Array, Dtype};
    /// let x = Array::from_slice(&[half::f16::ONE; 6], (2, 3))?;
    /// assert_eq!((x.shape(), x.dtype()), (&[2, 3][..], Dtype::Float16));
    /// assert!(Array::from_slice(&[1.0f32], 2).is_err());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn from_slice<T: Element>(elements: &[T], shape: impl IntoShape) -> Result<Self> {
        let shape = shape.dims();
        let shape = shape.as_ref();
        let expected = shape
            .iter()
            .try_fold(1usize, |size, &dim| size.checked_mul(usize::try_from(dim).ok()?));
        if expected != Some(elements.len()) {
            return Err(Error::argument(
                "from_slice",
                format_args!("as many elements as shape {shape:?} holds, got {}", elements.len()),
            ));
        }
        Self::from_bridge(ffi::from_bytes(as_bytes(elements), shape, T::DTYPE.into()))
    }

    /// A scalar.
    pub fn scalar<T: Element>(value: T) -> Result<Self> {
        Self::from_slice(&[value], ())
    }

    /// An array filled with one value.
    pub fn full<T: Element>(shape: impl IntoShape, value: T) -> Result<Self> {
        let shape = shape.dims();
        let shape = shape.as_ref();
        require_addressable("full", shape, T::DTYPE)?;
        Self::from_bridge(ffi::full(shape, Self::scalar(value)?.raw()))
    }

    /// An array of zeros.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// assert_eq!(Array::zeros::<i32>((2, 2))?.to_vec::<i32>()?, [0; 4]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn zeros<T: Element>(shape: impl IntoShape) -> Result<Self> {
        Self::full(shape, T::default())
    }

    /// An array of ones.
    pub fn ones<T: Element>(shape: impl IntoShape) -> Result<Self> {
        Self::full(shape, T::from_f64(1.0))
    }

    /// Zeros of a type known only at run time.
    pub fn zeros_of(shape: impl IntoShape, dtype: Dtype) -> Result<Self> {
        Self::full(shape, 0.0f32)?.astype(dtype)
    }

    /// `start`, `start + step`, … up to and without `stop`; an error for a step of zero.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::arange::<i32>(0.0, 10.0, 3.0)?;
    /// assert_eq!(x.to_vec::<i32>()?, [0, 3, 6, 9]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn arange<T: Element>(start: f64, stop: f64, step: f64) -> Result<Self> {
        Self::from_bridge(ffi::arange(start, stop, step, T::DTYPE.into()))
    }
}
