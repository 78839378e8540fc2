use super::{Array, IntoAxes};
use crate::error::Result;
use crate::ffi::bridge::{self as ffi, BinaryOp, ReduceOp, UnaryOp};

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        /// Elementwise functions of one array.
        ///
        /// ```
        /// # use mlx_primitives::Array;
        /// let x = Array::from_slice(&[-4.0f32, 9.0], 2)?;
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

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident, $keeping:ident => $op:ident;)*) => {
        /// Reductions over `axes`: `1`, `[0, -1]`, or `..` for all. The result does not have these axes;
        /// that of the function whose name ends in `_keepdims` has them with length 1.
        ///
        /// # Errors
        ///
        /// An error for an axis outside the rank or named twice, and for the extremes of nothing.
        ///
        /// ```
        /// # use mlx_primitives::Array;
        /// let x = Array::arange::<f32>(0.0, 6.0, 1.0)?.reshape((2, 3))?;
        /// assert_eq!(x.sum(-1)?.to_vec::<f32>()?, [3.0, 12.0]);
        /// assert_eq!(x.max_keepdims((0, 1))?.shape(), [1, 1]);
        /// assert_eq!(x.mean(..)?.item::<f32>()?, 2.5);
        /// # Ok::<(), mlx_primitives::Error>(())
        /// ```
        impl Array {$(
            $(#[$doc])*
            pub fn $name(&self, axes: impl IntoAxes) -> Result<Array> {
                self.reduce(ReduceOp::$op, axes, false)
            }

            $(#[$doc])*
            ///
            /// The reduced axes stay, with length 1.
            pub fn $keeping(&self, axes: impl IntoAxes) -> Result<Array> {
                self.reduce(ReduceOp::$op, axes, true)
            }
        )*}
    };
}

reductions! {
    /// True where all are true.
    all, all_keepdims => All;
    /// True where any is true.
    any, any_keepdims => Any;
    /// log(sum(exp(x))), without overflow.
    logsumexp, logsumexp_keepdims => LogSumExp;
    /// Greatest.
    max, max_keepdims => Max;
    /// Mean.
    mean, mean_keepdims => Mean;
    /// Least.
    min, min_keepdims => Min;
    /// Product.
    prod, prod_keepdims => Prod;
    /// Sum.
    sum, sum_keepdims => Sum;
    /// Variance, divided by the count.
    var, var_keepdims => Var;
}

/// Products, order and prefix sums.
impl Array {
    fn reduce(&self, op: ReduceOp, axes: impl IntoAxes, keepdims: bool) -> Result<Array> {
        Array::from_bridge(ffi::reduce(op, self.raw(), &axes.axes(self.ndim()), keepdims))
    }

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
    /// assert_eq!(x.argmax(0)?.item::<u32>()?, 1);
    /// assert_eq!(x.argsort(0)?.to_vec::<u32>()?, [0, 2, 1]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn argmax(&self, axis: i32) -> Result<Array> {
        Array::from_bridge(ffi::argmax(self.raw(), axis, false))
    }

    /// As [`Array::argmax`]; the axis stays, with length 1.
    pub fn argmax_keepdims(&self, axis: i32) -> Result<Array> {
        Array::from_bridge(ffi::argmax(self.raw(), axis, true))
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
