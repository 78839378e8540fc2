use super::Array;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::ffi::bridge::{self as ffi, BinaryOp, ReduceOp, UnaryOp};

/// The right-hand side of an elementwise op: an array, or a number that takes the array's type.
///
/// A number of floating point beside an integer array makes the result `float32`, as in MLX.
pub trait Operand {
    /// The operand as an array that promotes with `left` as a number does.
    fn operand(&self, left: &Array) -> Result<Array>;
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
    fn operand(&self, left: &Array) -> Result<Array> {
        let floating = left.dtype().is_floating() || left.dtype() == Dtype::Complex64;
        let dtype = if floating { left.dtype() } else { Dtype::Float32 };
        Array::scalar(*self)?.astype(dtype)
    }
}

impl Operand for i32 {
    fn operand(&self, left: &Array) -> Result<Array> {
        let dtype = if left.dtype() == Dtype::Bool { Dtype::Int32 } else { left.dtype() };
        Array::scalar(*self)?.astype(dtype)
    }
}

/// The axes of a reduction: one, several, or all of them.
pub trait Reduce {
    /// The axes to reduce of an array of this rank.
    fn axes(&self, rank: usize) -> Vec<i32>;
}

impl Reduce for i32 {
    fn axes(&self, _: usize) -> Vec<i32> {
        vec![*self]
    }
}

impl Reduce for &[i32] {
    fn axes(&self, _: usize) -> Vec<i32> {
        self.to_vec()
    }
}

impl<const N: usize> Reduce for [i32; N] {
    fn axes(&self, _: usize) -> Vec<i32> {
        self.to_vec()
    }
}

/// All axes.
impl Reduce for std::ops::RangeFull {
    fn axes(&self, rank: usize) -> Vec<i32> {
        (0..rank as i32).collect()
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        /// Elementwise functions of one array.
        ///
        /// ```
        /// # use mlx_primitives::Array;
        /// let x = Array::from_slice(&[-4.0f32, 9.0], &[2])?;
        /// assert_eq!(x.abs()?.sqrt()?.to_vec::<f32>()?, [2.0, 3.0]);
        /// # Ok::<(), mlx_primitives::Error>(())
        /// ```
        impl Array {$(
            $(#[$doc])*
            pub fn $name(&self) -> Result<Array> {
                Array::from_bridge(ffi::unary(UnaryOp::$op, self.raw()))
            }
        )*}
    };
}

unary! {
    /// Magnitude.
    abs => Abs;
    /// Cosine, in radians.
    cos => Cos;
    /// Error function.
    erf => Erf;
    /// e to the power of the elements.
    exp => Exp;
    /// True where an element is NaN.
    is_nan => IsNan;
    /// Natural logarithm.
    log => Log;
    /// Elementwise not.
    logical_not => LogicalNot;
    /// The opposite sign.
    negative => Negative;
    /// 1 / x.
    reciprocal => Reciprocal;
    /// 1 / sqrt(x).
    rsqrt => Rsqrt;
    /// 1 / (1 + exp(-x)).
    sigmoid => Sigmoid;
    /// Sine, in radians.
    sin => Sin;
    /// Square root.
    sqrt => Sqrt;
    /// x * x.
    square => Square;
    /// Hyperbolic tangent.
    tanh => Tanh;
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
                let right = right.operand(self)?;
                Array::from_bridge(ffi::binary(BinaryOp::$op, self.raw(), right.raw()))
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

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        /// Reductions over `axes` (`1`, `[0, -1]` or `..` for all); `keepdims` leaves them as 1.
        ///
        /// ```
        /// # use mlx_primitives::Array;
        /// let x = Array::arange::<f32>(0.0, 6.0, 1.0)?.reshape(&[2, 3])?;
        /// assert_eq!(x.sum(-1, false)?.to_vec::<f32>()?, [3.0, 12.0]);
        /// assert_eq!(x.max([0, 1], true)?.shape(), [1, 1]);
        /// assert_eq!(x.mean(.., false)?.item::<f32>()?, 2.5);
        /// # Ok::<(), mlx_primitives::Error>(())
        /// ```
        impl Array {$(
            $(#[$doc])*
            pub fn $name(&self, axes: impl Reduce, keepdims: bool) -> Result<Array> {
                let axes = axes.axes(self.ndim());
                Array::from_bridge(ffi::reduce(ReduceOp::$op, self.raw(), &axes, keepdims))
            }
        )*}
    };
}

reductions! {
    /// True where all are true.
    all => All;
    /// True where any is true.
    any => Any;
    /// log(sum(exp(x))), without overflow.
    logsumexp => LogSumExp;
    /// Greatest.
    max => Max;
    /// Mean.
    mean => Mean;
    /// Least.
    min => Min;
    /// Product.
    prod => Prod;
    /// Sum.
    sum => Sum;
    /// Variance, divided by the count.
    var => Var;
}

/// Products, order and prefix sums.
impl Array {
    /// Matrix product of the last two axes, broadcast over the others.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let a = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    /// let b = Array::ones::<f32>(&[2, 1])?;
    /// assert_eq!(a.matmul(&b)?.to_vec::<f32>()?, [3.0, 7.0]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn matmul(&self, right: &Array) -> Result<Array> {
        Array::from_bridge(ffi::binary(BinaryOp::Matmul, self.raw(), right.raw()))
    }

    /// The `uint32` index of the greatest element along `axis`.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1i32, 7, 3], &[3])?;
    /// assert_eq!(x.argmax(0, false)?.item::<u32>()?, 1);
    /// assert_eq!(x.argsort(0)?.to_vec::<u32>()?, [0, 2, 1]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn argmax(&self, axis: i32, keepdims: bool) -> Result<Array> {
        Array::from_bridge(ffi::argmax(self.raw(), axis, keepdims))
    }

    /// The `uint32` indices that sort along `axis`, least first.
    pub fn argsort(&self, axis: i32) -> Result<Array> {
        Array::from_bridge(ffi::argsort(self.raw(), axis))
    }

    /// Sorted along `axis`, least first.
    pub fn sort(&self, axis: i32) -> Result<Array> {
        Array::from_bridge(ffi::sort(self.raw(), axis))
    }

    /// Sums of the elements so far along `axis`, each element included.
    pub fn cumsum(&self, axis: i32) -> Result<Array> {
        Array::from_bridge(ffi::cumsum(self.raw(), axis))
    }
}
