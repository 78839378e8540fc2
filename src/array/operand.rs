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
/// A number of floating point beside an integer array makes the result `float32`, as in MLX. The trait
/// is sealed: implemented for [`Array`], `&Array`, `f32` and `i32`.
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
    /// The operand as an array that promotes with `other` as a number does.
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
        /// Elementwise functions of two arrays, which broadcast, or of an array and a number.
        ///
        /// ```
        /// # use mlx_primitives::Array;
        /// let x = Array::from_slice(&[1.0f32, 2.0], &[2])?;
        /// let y = x.multiply(&x)?.add(0.5)?;
        /// assert_eq!(y.to_vec::<f32>()?, [1.5, 4.5]);
        /// assert_eq!(y.greater(2.0)?.to_vec::<bool>()?, [false, true]);
        /// # Ok::<(), mlx_primitives::Error>(())
        /// ```
        impl Array {$(
            $(#[$doc])*
            pub fn $name(&self, right: impl Operand) -> Result<Array> {
                right_of(BinaryOp::$op, self, right)
            }
        )*}
    };
}

binary! {
    /// Sum.
    add => Add;
    /// Quotient; of integers a `float32`.
    divide => Divide;
    /// True where equal.
    equal => Equal;
    /// True where greater.
    greater => Greater;
    /// True where greater or equal.
    greater_equal => GreaterEqual;
    /// True where less.
    less => Less;
    /// True where less or equal.
    less_equal => LessEqual;
    /// Elementwise and.
    logical_and => LogicalAnd;
    /// Elementwise or.
    logical_or => LogicalOr;
    /// The greater of the two.
    maximum => Maximum;
    /// The lesser of the two.
    minimum => Minimum;
    /// Product.
    multiply => Multiply;
    /// True where not equal.
    not_equal => NotEqual;
    /// Power.
    power => Power;
    /// Difference.
    subtract => Subtract;
}

/// Implements an operator for every pair of operands that Rust's orphan rule allows, one of which has to
/// be an [`Array`] or a reference to one.
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

/// A number on the right of an array.
fn right_of(op: BinaryOp, left: impl Borrow<Array>, number: impl Operand) -> Result<Array> {
    let left = left.borrow();
    both(op, left, number.operand(left)?)
}

/// A number on the left of an array.
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
