use super::{Array, IntoShape, require_addressable};
use crate::dtype::{Dtype, Element, as_bytes};
use crate::error::{Error, Result};
use crate::ffi::bridge as ffi;

impl Array {
    /// An array of `shape` with a copy of the given elements, in row-major order. The type is
    /// [`T::DTYPE`](Element::DTYPE).
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the shape does not hold exactly `elements.len()` elements;
    /// [`Error::Mlx`] if the system refuses the memory, or if the loaded MLX does not have the
    /// version that this crate was built with ([`check_version`](crate::device::check_version)).
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

    /// An array of shape `[]` that holds `value`.
    ///
    /// # Errors
    ///
    /// [`Error::Mlx`] in the cases of [`Array::from_slice`].
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::scalar(2.5f32)?;
    /// assert_eq!((x.ndim(), x.item::<f32>()?), (0, 2.5));
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn scalar<T: Element>(value: T) -> Result<Self> {
        Self::from_slice(&[value], ())
    }

    /// An array of `shape` whose elements are all `value`.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] for a negative length, or for 2^47 bytes or more; [`Error::Mlx`] in the
    /// cases of [`Array::from_slice`].
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// assert_eq!(Array::full((2, 2), 7i32)?.to_vec::<i32>()?, [7; 4]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn full<T: Element>(shape: impl IntoShape, value: T) -> Result<Self> {
        Self::filled(shape, T::DTYPE, &Self::scalar(value)?)
    }

    /// An array of zeros of the type `T`.
    ///
    /// # Errors
    ///
    /// Returns an error in the cases of [`Array::full`].
    ///
    /// ```
    /// # use mlx_primitives::{Array, Dtype};
    /// assert_eq!(Array::zeros::<i32>((2, 2))?.to_vec::<i32>()?, [0; 4]);
    /// assert_eq!(Array::ones::<f32>(2)?.to_vec::<f32>()?, [1.0; 2]);
    /// assert_eq!(Array::zeros_of(2, Dtype::Bfloat16)?.dtype(), Dtype::Bfloat16);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn zeros<T: Element>(shape: impl IntoShape) -> Result<Self> {
        Self::full(shape, T::default())
    }

    /// An array of ones of the type `T`; [`Array::zeros`] has an example.
    ///
    /// # Errors
    ///
    /// Returns an error in the cases of [`Array::full`].
    pub fn ones<T: Element>(shape: impl IntoShape) -> Result<Self> {
        Self::full(shape, T::from_f64(1.0))
    }

    /// An array of zeros of a type that is known only at run time; [`Array::zeros`] has an example.
    ///
    /// # Errors
    ///
    /// Returns an error in the cases of [`Array::full`].
    pub fn zeros_of(shape: impl IntoShape, dtype: Dtype) -> Result<Self> {
        Self::filled(shape, dtype, &Self::scalar(0.0f32)?.astype(dtype)?)
    }

    fn filled(shape: impl IntoShape, dtype: Dtype, value: &Self) -> Result<Self> {
        let shape = shape.dims();
        let shape = shape.as_ref();
        require_addressable("full", shape, dtype)?;
        Self::from_bridge(ffi::full(shape, value.raw()))
    }

    /// The numbers `start`, `start + step`, … before `stop`, as an array of shape `[n]`. With a
    /// negative step, the numbers decrease.
    ///
    /// # Errors
    ///
    /// [`Error::Mlx`] for a step of zero, bounds that are NaN, more than `i32::MAX` elements, or
    /// `bool` as the type.
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
