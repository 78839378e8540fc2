//! The arguments of transforms and the results of their closures: an array, a tuple or a list.

use std::borrow::Borrow;

use crate::array::Array;
use crate::error::{Error, Result};

mod sealed {
    pub trait Arguments {}
    pub trait Outputs {}
    pub trait MapAxes {}
}

/// The arrays that a caller passes to a transform. Their type determines the form in which the
/// closure receives its arguments.
///
/// | arrays | the closure receives | results, such as gradients |
/// |---|---|---|
/// | `&x` | `Array` | `Array` |
/// | `(&x, &y)`, up to six | `(Array, Array)` | `(Array, Array)` |
/// | `&[&x, &y]`, `&vec` of `Array` or `&Array` | `Vec<Array>` | `Vec<Array>` |
///
/// The trait is sealed.
///
/// ```
/// use mlx_primitives::{Array, Result, transforms::grad};
///
/// let (x, w) = (Array::full(2, 3.0f32)?, Array::full(2, 5.0f32)?);
/// let dx: Array = grad(|x| (x * &w)?.sum(..), &x)?;
/// let (_, dw) = grad(|(x, w)| (x * w)?.sum(..), (&x, &w))?;
/// let both: Vec<Array> = grad(|p| (&p[0] * &p[1])?.sum(..), &[&x, &w])?;
/// assert_eq!(dx.to_vec::<f32>()?, [5.0; 2]);
/// assert_eq!(dw.to_vec::<f32>()?, [3.0; 2]);
/// assert_eq!(both.len(), 2);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub trait Arguments: sealed::Arguments {
    /// The form in which the closure receives its arguments, and in which gradients are returned.
    type Arrays: Outputs;

    /// The arrays in order.
    #[doc(hidden)]
    fn all(&self) -> Vec<&Array>;
}

/// The results of a closure: an [`Array`], a tuple of up to six arrays, or a Rust array or vector
/// of arrays.
///
/// The trait is sealed.
///
/// ```
/// use mlx_primitives::{Array, transforms::vjp};
///
/// let (x, one) = (Array::scalar(0.5f32)?, Array::scalar(1.0f32)?);
/// let (sine, slope) = vjp(|x| x.sin(), &x, &one)?;
/// let ((_, cosine), _) = vjp(|x| Ok((x.sin()?, x.cos()?)), &x, (&one, &one))?;
/// assert_eq!(slope.item::<f32>()?, cosine.item::<f32>()?);
/// assert_eq!(sine.item::<f32>()?, 0.5f32.sin());
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub trait Outputs: sealed::Outputs + Sized {
    /// The arrays in order.
    #[doc(hidden)]
    fn into_vec(self) -> Vec<Array>;

    /// The inverse of [`into_vec`](Self::into_vec).
    #[doc(hidden)]
    fn from_vec(arrays: Vec<Array>) -> Result<Self>;
}

/// The error for a wrong number of arrays. It does not occur, because MLX returns one array for
/// each array that it takes.
fn miscounted(expected: usize, got: usize) -> Error {
    Error::argument("transform", format_args!("{expected} arrays, got {got}"))
}

impl sealed::Arguments for &Array {}
impl Arguments for &Array {
    type Arrays = Array;

    fn all(&self) -> Vec<&Array> {
        vec![self]
    }
}

impl sealed::Outputs for Array {}
impl Outputs for Array {
    fn into_vec(self) -> Vec<Array> {
        vec![self]
    }

    fn from_vec(arrays: Vec<Array>) -> Result<Self> {
        let [array] = <[Array; 1]>::from_vec(arrays)?;
        Ok(array)
    }
}

impl<const N: usize> sealed::Outputs for [Array; N] {}
impl<const N: usize> Outputs for [Array; N] {
    fn into_vec(self) -> Vec<Array> {
        self.into()
    }

    fn from_vec(arrays: Vec<Array>) -> Result<Self> {
        arrays.try_into().map_err(|arrays: Vec<Array>| miscounted(N, arrays.len()))
    }
}

impl sealed::Outputs for Vec<Array> {}
impl Outputs for Vec<Array> {
    fn into_vec(self) -> Vec<Array> {
        self
    }

    fn from_vec(arrays: Vec<Array>) -> Result<Self> {
        Ok(arrays)
    }
}

macro_rules! lists {
    ($([$($generics:tt)*] $list:ty;)*) => {$(
        impl<T: Borrow<Array>, $($generics)*> sealed::Arguments for &$list {}
        impl<T: Borrow<Array>, $($generics)*> Arguments for &$list {
            type Arrays = Vec<Array>;

            fn all(&self) -> Vec<&Array> {
                self.iter().map(Borrow::borrow).collect()
            }
        }
    )*};
}

lists! {
    [] [T];
    [] Vec<T>;
    [const N: usize] [T; N];
}

/// Expands to the type and ignores the name. With it, a macro can repeat a type once for each name
/// of a tuple.
macro_rules! one {
    ($name:ident, $($array:tt)*) => { $($array)* };
}

macro_rules! tuples {
    ($($($name:ident)*;)*) => {$(
        impl<'x> sealed::Arguments for ($(one!($name, &'x Array),)*) {}
        impl<'x> Arguments for ($(one!($name, &'x Array),)*) {
            type Arrays = ($(one!($name, Array),)*);

            fn all(&self) -> Vec<&Array> {
                let ($($name,)*) = self;
                vec![$($name),*]
            }
        }

        impl sealed::Outputs for ($(one!($name, Array),)*) {}
        impl Outputs for ($(one!($name, Array),)*) {
            fn into_vec(self) -> Vec<Array> {
                let ($($name,)*) = self;
                vec![$($name),*]
            }

            fn from_vec(arrays: Vec<Array>) -> Result<Self> {
                let [$($name),*] = Outputs::from_vec(arrays)?;
                Ok(($($name,)*))
            }
        }
    )*};
}

tuples! {
    a;
    a b;
    a b c;
    a b c d;
    a b c d e;
    a b c d e f;
}

/// The axes of [`vmap`](super::vmap): either one `i32` for all arrays, or a list with an `i32` or
/// an `Option<i32>` for each array. With `None`, every call of the closure gets the full array.
///
/// The trait is sealed.
pub trait MapAxes: sealed::MapAxes {
    /// Returns an axis for each of `count` arrays. A list is returned unchanged, even if its length
    /// is not `count`; the caller checks the length.
    #[doc(hidden)]
    fn of(&self, count: usize) -> Vec<Option<i32>>;
}

impl<T: sealed::MapAxes + ?Sized> sealed::MapAxes for &T {}
impl<T: MapAxes + ?Sized> MapAxes for &T {
    fn of(&self, count: usize) -> Vec<Option<i32>> {
        (**self).of(count)
    }
}

impl sealed::MapAxes for i32 {}
impl MapAxes for i32 {
    fn of(&self, count: usize) -> Vec<Option<i32>> {
        vec![Some(*self); count]
    }
}

macro_rules! axes {
    ($([$($generics:tt)*] $list:ty;)*) => {$(
        impl<$($generics)*> sealed::MapAxes for $list {}
        impl<$($generics)*> MapAxes for $list {
            fn of(&self, _: usize) -> Vec<Option<i32>> {
                self.iter().map(|&axis| axis.into()).collect()
            }
        }
    )*};
}

axes! {
    [] [i32];
    [] Vec<i32>;
    [const N: usize] [i32; N];
    [] [Option<i32>];
    [] Vec<Option<i32>>;
    [const N: usize] [Option<i32>; N];
}
