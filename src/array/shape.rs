//! Shapes and axes as arguments, and shapes as tuples.

use std::ops::RangeFull;

use super::Array;
use crate::error::{Error, Result};

mod sealed {
    pub trait Shape {}
    pub trait Axes {}
}

/// A shape: the length of each dimension, from the outermost to the last.
///
/// Shapes are arrays, slices and vectors of `i32`, tuples of up to six, one `i32` for rank 1, and
/// `()` for a scalar. References to any of these are shapes too. The trait is sealed.
///
/// ```
/// use mlx_primitives::Array;
///
/// let x = Array::zeros::<f32>((2, 6))?;
/// for y in [x.reshape([3, 4])?, x.reshape((3, -1))?, x.reshape(&vec![3, 4])?] {
///     assert_eq!(y.shape(), [3, 4]);
/// }
/// assert_eq!(x.reshape(12)?.shape(), [12]);
/// assert_eq!(Array::full((), 1.0f32)?.ndim(), 0);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub trait IntoShape: sealed::Shape {
    /// The length of each dimension.
    #[doc(hidden)]
    fn dims(&self) -> impl AsRef<[i32]>;
}

/// The axes that an operation takes: one, several, or all of them. Negative axes count from the
/// last.
///
/// `..` is all axes of the array, an `i32` is one; arrays, slices and vectors of
/// `i32` and tuples of up to six are several. An `Option<i32>` is one axis or, for `None` as in
/// NumPy, all. References to any of these are axes too. The trait is sealed.
///
/// ```
/// use mlx_primitives::Array;
///
/// let x = Array::ones::<f32>((2, 3, 4))?;
/// assert_eq!(x.sum(..)?.item::<f32>()?, 24.0);
/// assert_eq!(x.sum(-1)?.shape(), [2, 3]);
/// assert_eq!(x.sum((0, 2))?.shape(), [3]);
/// assert_eq!(x.transpose([2, 0, 1])?.shape(), [4, 2, 3]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub trait IntoAxes: sealed::Axes {
    /// The axes of an array of this rank.
    #[doc(hidden)]
    fn axes(&self, rank: usize) -> Vec<i32>;

    /// Whether the argument means all axes of an array of any rank.
    #[doc(hidden)]
    fn are_all(&self) -> bool {
        false
    }
}

impl<T: sealed::Shape + ?Sized> sealed::Shape for &T {}
impl<T: IntoShape + ?Sized> IntoShape for &T {
    fn dims(&self) -> impl AsRef<[i32]> {
        (**self).dims()
    }
}

impl<T: sealed::Axes + ?Sized> sealed::Axes for &T {}
impl<T: IntoAxes + ?Sized> IntoAxes for &T {
    fn axes(&self, rank: usize) -> Vec<i32> {
        (**self).axes(rank)
    }

    fn are_all(&self) -> bool {
        (**self).are_all()
    }
}

impl sealed::Axes for RangeFull {}
impl IntoAxes for RangeFull {
    fn axes(&self, rank: usize) -> Vec<i32> {
        (0..rank as i32).collect()
    }

    fn are_all(&self) -> bool {
        true
    }
}

impl sealed::Axes for Option<i32> {}
impl IntoAxes for Option<i32> {
    fn axes(&self, rank: usize) -> Vec<i32> {
        self.map_or_else(|| (..).axes(rank), |axis| vec![axis])
    }

    fn are_all(&self) -> bool {
        self.is_none()
    }
}

/// Implements `IntoShape` and `IntoAxes` for each type, by a conversion to an array or a slice.
macro_rules! lists {
    ($([$($generics:tt)*] $list:ty: |$value:ident| $dims:expr;)*) => {$(
        impl<$($generics)*> sealed::Shape for $list {}
        impl<$($generics)*> IntoShape for $list {
            fn dims(&self) -> impl AsRef<[i32]> {
                let $value = self;
                $dims
            }
        }

        impl<$($generics)*> sealed::Axes for $list {}
        impl<$($generics)*> IntoAxes for $list {
            fn axes(&self, _: usize) -> Vec<i32> {
                self.dims().as_ref().to_vec()
            }
        }
    )*};
}

lists! {
    [] i32: |dim| [*dim];
    [] [i32]: |dims| dims;
    [] Vec<i32>: |dims| dims;
    [const N: usize] [i32; N]: |dims| dims;
    [] (): |_none| [];
    [] (i32,): |dims| [dims.0];
    [] (i32, i32): |dims| <[i32; 2]>::from(*dims);
    [] (i32, i32, i32): |dims| <[i32; 3]>::from(*dims);
    [] (i32, i32, i32, i32): |dims| <[i32; 4]>::from(*dims);
    [] (i32, i32, i32, i32, i32): |dims| <[i32; 5]>::from(*dims);
    [] (i32, i32, i32, i32, i32, i32): |dims| <[i32; 6]>::from(*dims);
}

impl Array {
    /// The length of the one dimension of a vector; [`Array::dims2`] has an example.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the rank is not 1.
    pub fn dims1(&self) -> Result<i32> {
        self.dims_of("dims1").map(|[a]| a)
    }

    /// The lengths of both dimensions of a matrix.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the rank is not 2.
    ///
    /// ```
    /// # use mlx_primitives::{Array, Error};
    /// let x = Array::zeros::<f32>((2, 3))?;
    /// let (rows, columns) = x.dims2()?;
    /// assert_eq!((rows, columns), (2, 3));
    /// assert!(matches!(x.dims3(), Err(Error::Shape { .. })));
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn dims2(&self) -> Result<(i32, i32)> {
        self.dims_of::<2>("dims2").map(Into::into)
    }

    /// The lengths of all three dimensions; [`Array::dims2`] has an example.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the rank is not 3.
    pub fn dims3(&self) -> Result<(i32, i32, i32)> {
        self.dims_of::<3>("dims3").map(Into::into)
    }

    /// The lengths of all four dimensions; [`Array::dims2`] has an example.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the rank is not 4.
    pub fn dims4(&self) -> Result<(i32, i32, i32, i32)> {
        self.dims_of::<4>("dims4").map(Into::into)
    }

    fn dims_of<const N: usize>(&self, op: &str) -> Result<[i32; N]> {
        let shape = self.shape();
        shape.try_into().map_err(|_| Error::shape(op, format_args!("an array of rank {N}"), shape))
    }
}
