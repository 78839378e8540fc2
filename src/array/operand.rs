use std::borrow::Borrow;
use std::ops;

use super::Array;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::ffi::bridge::{self as ffi, BinaryOp};

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Array {}
    impl Sealed for &super::Array {}
    impl Sealed for f32 {}
    impl Sealed for i32 {}
}

/// The right-hand side of an elementwise op: an array, or a number that takes the array's type.
///
/// A floating-point number beside an array of integers or bools makes the result float32, as in
/// MLX. The trait is sealed: implemented for [`Array`], `&Array`, `f32` and `i32`.
///
/// ```
/// use mlx_primitives::{Array, Dtype};
///
/// let x = Array::ones::<half::f16>(3)?;
/// assert_eq!(x.add(0.5)?.dtype(), Dtype::Float16);
/// assert_eq!(Array::ones::<i32>(3)?.add(0.5)?.dtype(), Dtype::Float32);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub trait Operand: sealed::Sealed {
    /// The operand as an array. A number gets the type of `other`, with two exceptions: an `f32` is
    /// float32 if `other` has integers or bools, and an `i32` is int32 if `other` has bools.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX has no memory for the number.
    #[doc(hidden)]
    fn operand(&self, other: &Array) -> Result<Array>;
}

impl Operand for Array {
    fn operand(&self, _: &Array) -> Result<Array> {
        Ok(self.clone())
    }
}

impl Operand for &Array {
    fn operand(&self, _: &Array) -> Result<Array> {
        Ok((*self).clone())
    }
}

impl Operand for f32 {
    fn operand(&self, other: &Array) -> Result<Array> {
        let floating = other.dtype().is_floating() || other.dtype() == Dtype::Complex64;
        let dtype = if floating { other.dtype() } else { Dtype::Float32 };
        Array::scalar(*self)?.astype(dtype)
    }
}

impl Operand for i32 {
    fn operand(&self, other: &Array) -> Result<Array> {
        let dtype = if other.dtype() == Dtype::Bool { Dtype::Int32 } else { other.dtype() };
        Array::scalar(*self)?.astype(dtype)
    }
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        /// Elementwise functions of two arrays, which broadcast, or of an array and a number. The
        /// result has the type that both operands promote to; comparisons and logic give bools.
        impl Array {$(
            $(#[$doc])*
            ///
            /// # Errors
            ///
            /// Returns an error for shapes that do not broadcast.
            pub fn $name(&self, right: impl Operand) -> Result<Array> {
                right_of(BinaryOp::$op, self, right)
            }
        )*}
    };
}

binary! {
    /// The sum `self + right`.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1.0f32, 2.0], 2)?;
    /// assert_eq!(x.add(&x)?.subtract(0.5)?.to_vec::<f32>()?, [1.5, 3.5]);
    /// assert_eq!(x.multiply(&x)?.divide(2.0)?.to_vec::<f32>()?, [0.5, 2.0]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    add => Add;
    /// The quotient `self / right`; float32 for integers. [`Array::add`] has an example.
    divide => Divide;
    /// Bools that are true where `self == right`. [`Array::greater`] has an example.
    equal => Equal;
    /// Bools that are true where `self > right`.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1i32, 2, 3], 3)?;
    /// assert_eq!(x.greater(2)?.to_vec::<bool>()?, [false, false, true]);
    /// assert_eq!(x.equal(2)?.to_vec::<bool>()?, [false, true, false]);
    /// let inside = x.greater_equal(2)?.logical_and(x.less(3)?)?;
    /// assert_eq!(inside.to_vec::<bool>()?, [false, true, false]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    greater => Greater;
    /// Bools that are true where `self >= right`. [`Array::greater`] has an example.
    greater_equal => GreaterEqual;
    /// Bools that are true where `self < right`. [`Array::greater`] has an example.
    less => Less;
    /// Bools that are true where `self <= right`. [`Array::greater`] has an example.
    less_equal => LessEqual;
    /// Bools that are true where both elements are true, or not zero. See [`Array::greater`].
    logical_and => LogicalAnd;
    /// Bools that are true where one of the elements is true, or not zero.
    /// [`Array::greater`] has an example of `logical_and`.
    logical_or => LogicalOr;
    /// The greater of the two elements, NaN if one of them is NaN.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[-2.0f32, 0.5, 2.0], 3)?;
    /// assert_eq!(x.maximum(-1.0)?.minimum(1.0)?.to_vec::<f32>()?, [-1.0, 0.5, 1.0]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    maximum => Maximum;
    /// The lesser of the two elements, NaN if one of them is NaN. See [`Array::maximum`].
    minimum => Minimum;
    /// The product `self * right`. [`Array::add`] has an example.
    multiply => Multiply;
    /// Bools that are true where `self != right`. [`Array::greater`] has an example of a
    /// comparison.
    not_equal => NotEqual;
    /// The power `self ^ right`.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[2i32, 3], 2)?;
    /// assert_eq!(x.power(2)?.to_vec::<i32>()?, [4, 9]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    power => Power;
    /// The difference `self - right`. [`Array::add`] has an example.
    subtract => Subtract;
}

/// Implements an operator for every pair of operands that Rust's orphan rule allows: one operand
/// has to be an [`Array`] or an `&Array`.
macro_rules! operators {
    ($($trait:ident $method:ident => $op:ident;)*) => {$(
        operators!($trait $method $op: both(Array, Array), both(Array, &Array), both(&Array, Array),
            both(&Array, &Array), right_of(Array, f32), right_of(&Array, f32), right_of(Array, i32),
            right_of(&Array, i32), left_of(f32, Array), left_of(f32, &Array), left_of(i32, Array),
            left_of(i32, &Array), result_right(Array, Result<Array>),
            result_right(&Array, Result<Array>), result_left(Result<Array>, Array),
            result_left(Result<Array>, &Array));
    )*};
    ($trait:ident $method:ident $op:ident: $($apply:ident($left:ty, $right:ty)),*) => {$(
        impl ops::$trait<$right> for $left {
            type Output = Result<Array>;

            fn $method(self, right: $right) -> Result<Array> {
                $apply(BinaryOp::$op, self, right)
            }
        }
    )*};
}

operators! {
    Add add => Add;
    Sub sub => Subtract;
    Mul mul => Multiply;
    Div div => Divide;
}

fn both(op: BinaryOp, left: impl Borrow<Array>, right: impl Borrow<Array>) -> Result<Array> {
    let (left, right) = (left.borrow(), right.borrow());
    Array::from_bridge(ffi::binary(op, left.raw(), right.raw()))
}

/// Applies the op with an array on the left and a number, or another operand, on the right.
fn right_of(op: BinaryOp, left: impl Borrow<Array>, number: impl Operand) -> Result<Array> {
    let left = left.borrow();
    both(op, left, number.operand(left)?)
}

/// Applies the op with a number on the left and an array on the right.
fn left_of(op: BinaryOp, number: impl Operand, right: impl Borrow<Array>) -> Result<Array> {
    let right = right.borrow();
    both(op, number.operand(right)?, right)
}

fn result_right(op: BinaryOp, left: impl Borrow<Array>, right: Result<Array>) -> Result<Array> {
    both(op, left, right?)
}

fn result_left(op: BinaryOp, left: Result<Array>, right: impl Borrow<Array>) -> Result<Array> {
    both(op, left?, right)
}

macro_rules! negation {
    ($($array:ty),*) => {$(
        impl ops::Neg for $array {
            type Output = Result<Array>;

            fn neg(self) -> Result<Array> {
                self.negative()
            }
        }
    )*};
}

negation!(Array, &Array);
