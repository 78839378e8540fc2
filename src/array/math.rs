use super::{Array, IntoAxes};
use crate::error::Result;
use crate::ffi::bridge::{self as ffi, ReduceOp, UnaryOp};

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident $(, $refused:literal)?;)*) => {
        /// Elementwise functions of one array. The result has the shape of the array and, except
        /// where a function says so, its type.
        impl Array {$(
            $(#[$doc])*
            ///
            /// # Errors
            ///
            #[doc = concat!(
                "Returns an error ", $("for ", $refused, ", or ",)? "if MLX cannot be started."
            )]
            pub fn $name(&self) -> Result<Array> {
                Array::from_bridge(ffi::unary(UnaryOp::$op, self.raw()))
            }
        )*}
    };
}

unary! {
    /// The magnitude `|x|`; float32 for complex64.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[-4.0f32, 9.0], 2)?;
    /// assert_eq!(x.abs()?.to_vec::<f32>()?, [4.0, 9.0]);
    /// assert_eq!(x.negative()?.to_vec::<f32>()?, [4.0, -9.0]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    abs => Abs;
    /// The cosine `cos(x)` of radians; float32 for integers and bools. See [`Array::sin`].
    cos => Cos;
    /// The error function: `2 / sqrt(pi)` times the integral of `exp(-t²)` from 0 to `x`; float32
    /// for integers and bools. [`Array::tanh`] has an example.
    erf => Erf, "complex64";
    /// The exponential `e^x`; float32 for integers and bools.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[0.0f32, 1.0], 2)?;
    /// let y = x.exp()?.log()?.to_vec::<f32>()?;
    /// assert!(y[0].abs() < 1e-6 && (y[1] - 1.0).abs() < 1e-6);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    exp => Exp;
    /// Bools that are true where an element is NaN.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[f32::NAN, 1.0], 2)?;
    /// assert_eq!(x.is_nan()?.to_vec::<bool>()?, [true, false]);
    /// assert_eq!(x.is_nan()?.logical_not()?.to_vec::<bool>()?, [false, true]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    is_nan => IsNan;
    /// The natural logarithm `ln(x)`; float32 for integers and bools. See [`Array::exp`].
    log => Log;
    /// Bools that are true where an element is zero or false. [`Array::is_nan`] has an example.
    logical_not => LogicalNot;
    /// The negative `-x`, also written as the operator `-`. [`Array::abs`] has an example.
    negative => Negative, "bools";
    /// The reciprocal `1 / x`; float32 for integers and bools. [`Array::sqrt`] has an example.
    reciprocal => Reciprocal;
    /// The reciprocal root `1 / sqrt(x)`; float32 for integers and bools. See [`Array::sqrt`].
    rsqrt => Rsqrt;
    /// The logistic function `1 / (1 + exp(-x))`; float32 for integers and bools. [`Array::tanh`]
    /// has an example.
    sigmoid => Sigmoid, "complex64";
    /// The sine `sin(x)` of an angle in radians; float32 for integers and bools.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[0.5f32, 2.0], 2)?;
    /// let one = (x.sin()?.square()? + x.cos()?.square()?)?.to_vec::<f32>()?;
    /// assert!(one.iter().all(|y| (y - 1.0).abs() < 1e-6));
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    sin => Sin;
    /// The square root `sqrt(x)`, NaN below zero; float32 for integers and bools.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[4.0f32, 16.0], 2)?;
    /// assert_eq!(x.sqrt()?.to_vec::<f32>()?, [2.0, 4.0]);
    /// assert_eq!(x.sqrt()?.square()?.to_vec::<f32>()?, [4.0, 16.0]);
    /// assert_eq!(x.reciprocal()?.to_vec::<f32>()?, [0.25, 0.0625]);
    /// let y = x.rsqrt()?.to_vec::<f32>()?;
    /// assert!((y[0] - 0.5).abs() < 1e-6 && (y[1] - 0.25).abs() < 1e-6);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    sqrt => Sqrt;
    /// The square `x * x`. [`Array::sqrt`] has an example.
    square => Square;
    /// The hyperbolic tangent `tanh(x)`; float32 for integers and bools.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::scalar(1.0f32)?;
    /// assert!((x.tanh()?.item::<f32>()? - 0.761_594).abs() < 1e-5);
    /// assert!((x.sigmoid()?.item::<f32>()? - 0.731_059).abs() < 1e-5);
    /// assert!((x.erf()?.item::<f32>()? - 0.842_701).abs() < 1e-5);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    tanh => Tanh;
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident, $keeping:ident => $op:ident $(, $empty:literal)?;)*) => {
        /// Reductions over `axes`: `1`, `[0, -1]`, or `..` for all. The result does not have these
        /// axes. A function whose name ends in `_keepdims` keeps them, with length 1.
        impl Array {$(
            $(#[$doc])*
            ///
            /// # Errors
            ///
            #[doc = concat!(
                "Returns an error for an axis outside the rank or named twice",
                $(", and ", $empty,)? "."
            )]
            pub fn $name(&self, axes: impl IntoAxes) -> Result<Array> {
                self.reduce(ReduceOp::$op, axes, false)
            }

            #[doc = concat!(
                "[`Array::", stringify!($name), "`], with the reduced axes kept, with length 1."
            )]
            /// [`Array::sum`] has an example.
            ///
            /// # Errors
            ///
            #[doc = concat!("Returns an error for what [`Array::", stringify!($name), "`] refuses.")]
            pub fn $keeping(&self, axes: impl IntoAxes) -> Result<Array> {
                self.reduce(ReduceOp::$op, axes, true)
            }
        )*}
    };
}

reductions! {
    /// Bools that are true where all reduced elements are true or not zero. The result for no
    /// elements is true.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[true, false, true, true], (2, 2))?;
    /// assert_eq!(x.all(-1)?.to_vec::<bool>()?, [false, true]);
    /// assert!(x.any(..)?.item::<bool>()?);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    all, all_keepdims => All;
    /// Bools that are true where any reduced element is true or not zero. The result for no
    /// elements is false. [`Array::all`] has an example.
    any, any_keepdims => Any;
    /// The logarithm of a sum of exponentials `log(sum(exp(x)))`, without overflow; float32 for
    /// integers and bools. [`ops::logsumexp`](crate::ops::logsumexp) is our kernel for the last
    /// axis.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1000.0f32, 1000.0], 2)?;
    /// assert!((x.logsumexp(..)?.item::<f32>()? - 1000.6931).abs() < 1e-3);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    logsumexp, logsumexp_keepdims => LogSumExp, "for an array without elements";
    /// The greatest element.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[3i32, 1, 2], 3)?;
    /// assert_eq!((x.max(..)?.item::<i32>()?, x.min(..)?.item::<i32>()?), (3, 1));
    /// assert!(Array::zeros::<f32>(0)?.max(..).is_err());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    max, max_keepdims => Max, "for an axis without elements";
    /// The mean `sum(x) / n`; float32 for integers and bools. NaN for no elements. [`Array::sum`]
    /// has an example.
    mean, mean_keepdims => Mean;
    /// The least element. [`Array::max`] has an example.
    min, min_keepdims => Min, "for an axis without elements";
    /// The product; int32 for bools. 1 for no elements. [`Array::sum`] has an example.
    prod, prod_keepdims => Prod;
    /// The sum; int32 for bools. 0 for no elements. [`ops::sum`](crate::ops::sum) is our kernel for
    /// the last axis and for all axes.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], (2, 2))?;
    /// assert_eq!(x.sum(-1)?.to_vec::<f32>()?, [3.0, 7.0]);
    /// assert_eq!(x.prod((0, 1))?.item::<f32>()?, 24.0);
    /// assert_eq!(x.mean(..)?.item::<f32>()?, 2.5);
    /// assert_eq!(x.sum_keepdims(0)?.shape(), [1, 2]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    sum, sum_keepdims => Sum;
    /// The variance `sum((x - mean(x))²) / n`; float32 for integers, bools and complex64. NaN for
    /// no elements.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1.0f32, 3.0], 2)?;
    /// assert_eq!(x.var(..)?.item::<f32>()?, 1.0);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    var, var_keepdims => Var;
}

/// Matrix products, sorting and prefix sums.
impl Array {
    fn reduce(&self, op: ReduceOp, axes: impl IntoAxes, keepdims: bool) -> Result<Array> {
        Array::from_bridge(ffi::reduce(op, self.raw(), &axes.axes(self.ndim()), keepdims))
    }

    /// The product of matrices: `[..., m, k]` times `[..., k, n]` is `[..., m, n]`, of the type
    /// that both promote to; leading axes broadcast. A vector on the left is a row, and a vector on
    /// the right is a column; the result does not have the added axis. On a CPU this runs the
    /// kernel of [`ops::matmul`](crate::ops::matmul), unless MLX calls the system's library, as on
    /// macOS. On a GPU it runs MLX's kernel.
    ///
    /// # Errors
    ///
    /// Returns an error for a scalar, extents that do not match, leading axes that do not
    /// broadcast, or if both arrays have integers or bools.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let a = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    /// let b = Array::ones::<f32>(&[2, 1])?;
    /// assert_eq!(a.matmul(&b)?.to_vec::<f32>()?, [3.0, 7.0]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn matmul(&self, right: &Array) -> Result<Array> {
        Array::from_bridge(crate::ffi::ops::bridge::product(self.raw(), right.raw()))
    }

    /// The indices, uint32, of the greatest elements along `axis`; the first index if several
    /// elements are greatest. The result does not have the axis.
    ///
    /// # Errors
    ///
    /// Returns an error for an axis outside the rank, or for an array without elements.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1i32, 7, 3], &[3])?;
    /// assert_eq!(x.argmax(0)?.item::<u32>()?, 1);
    /// assert_eq!(x.argmax_keepdims(0)?.shape(), [1]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn argmax(&self, axis: i32) -> Result<Array> {
        Array::from_bridge(ffi::argmax(self.raw(), axis, false))
    }

    /// [`Array::argmax`], but the result keeps the axis, with length 1.
    ///
    /// # Errors
    ///
    /// Returns an error in the cases of [`Array::argmax`].
    pub fn argmax_keepdims(&self, axis: i32) -> Result<Array> {
        Array::from_bridge(ffi::argmax(self.raw(), axis, true))
    }

    /// The indices, uint32, that sort the elements along `axis`, least first. See [`Array::sort`].
    ///
    /// # Errors
    ///
    /// Returns an error for an axis outside the rank.
    pub fn argsort(&self, axis: i32) -> Result<Array> {
        Array::from_bridge(ffi::argsort(self.raw(), axis))
    }

    /// The elements sorted along `axis`, least first.
    ///
    /// # Errors
    ///
    /// Returns an error for an axis outside the rank.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1i32, 7, 3], 3)?;
    /// assert_eq!(x.sort(0)?.to_vec::<i32>()?, [1, 3, 7]);
    /// assert_eq!(x.argsort(0)?.to_vec::<u32>()?, [0, 2, 1]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn sort(&self, axis: i32) -> Result<Array> {
        Array::from_bridge(ffi::sort(self.raw(), axis))
    }

    /// The prefix sums along `axis`: element `i` of the result is the sum of elements 0 to `i`.
    ///
    /// # Errors
    ///
    /// Returns an error for an axis outside the rank.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1i32, 2, 3], 3)?;
    /// assert_eq!(x.cumsum(0)?.to_vec::<i32>()?, [1, 3, 6]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn cumsum(&self, axis: i32) -> Result<Array> {
        Array::from_bridge(ffi::cumsum(self.raw(), axis))
    }
}
