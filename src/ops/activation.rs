use crate::array::Array;
use crate::error::Result;
use crate::ffi::ops::bridge::{self as ffi, ActivationKind};
use crate::tune::{chosen, rows};

/// The activation function that [`linear`](crate::ops::linear) applies after it adds the bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// [`relu`]: `max(x, 0)`.
    Relu,
    /// [`gelu`]: `x * (1 + erf(x / sqrt(2))) / 2`.
    Gelu,
    /// [`gelu_tanh`]: the approximation of [`gelu`] that uses tanh.
    GeluTanh,
    /// [`silu`]: `x * sigmoid(x)`.
    Silu,
}

impl Activation {
    pub(crate) fn kind(self) -> ActivationKind {
        match self {
            Self::Relu => ActivationKind::Relu,
            Self::Gelu => ActivationKind::Gelu,
            Self::GeluTanh => ActivationKind::GeluTanh,
            Self::Silu => ActivationKind::Silu,
        }
    }
}

fn of_one(name: &str, kind: ActivationKind, x: &Array) -> Result<Array> {
    chosen(name, || rows(x), ffi::activation(kind, x.raw()))
}

fn of_two(name: &str, kind: ActivationKind, a: &Array, b: &Array) -> Result<Array> {
    chosen(name, || rows(a), ffi::activation_of_two(kind, a.raw(), b.raw()))
}

/// Rectified linear unit: `max(x, 0)`. The result of NaN is NaN.
///
/// The result has the shape and type of `x` (integers become float32). Differentiable in `x`.
///
/// # Cost
///
/// One kernel moves `2 s` elements for an `x` of s elements, and computes `s` operations. The
/// gradient takes one kernel and keeps `x` in memory.
///
/// # Errors
///
/// Returns an error if `x` is float64 or complex.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[-1.0f32, 2.0], &[2])?;
/// assert_eq!(ops::relu(&x)?.to_vec::<f32>()?, [0.0, 2.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn relu(x: &Array) -> Result<Array> {
    of_one("relu", ActivationKind::Relu, x)
}

/// Sigmoid linear unit ([Elfwing et al. 2017](https://arxiv.org/abs/1702.03118)): `x * sigmoid(x)`,
/// with the sigmoid and the product each rounded to the type of `x`, as in `mlx.nn.silu`.
///
/// The result has the shape and type of `x` (integers become float32). Differentiable in `x`.
///
/// # Cost
///
/// One kernel moves `2 s` elements for an `x` of s elements, and computes `4 s` operations, of
/// which s are exponentials. The gradient takes one kernel and keeps `x` in memory.
///
/// # Errors
///
/// Returns an error if `x` is float64 or complex.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let y = ops::silu(&Array::from_slice(&[0.0f32, 1.0], &[2])?)?.to_vec::<f32>()?;
/// assert!(y[0] == 0.0 && (y[1] - 1.0 / (1.0 + (-1f32).exp())).abs() < 1e-6);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn silu(x: &Array) -> Result<Array> {
    of_one("silu", ActivationKind::Silu, x)
}

/// Gaussian error linear unit ([Hendrycks and Gimpel 2016](https://arxiv.org/abs/1606.08415)):
/// `x * (1 + erf(x / sqrt(2))) / 2`, with each step rounded to the type of `x`, as in
/// `mlx.nn.gelu`.
///
/// The result has the shape and type of `x` (integers become float32). Differentiable in `x`.
///
/// # Cost
///
/// One kernel moves `2 s` elements for an `x` of s elements, and computes `5 s` operations, of
/// which s are error functions. The gradient takes one kernel and keeps `x` in memory.
///
/// # Errors
///
/// Returns an error if `x` is float64 or complex.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let y = ops::gelu(&Array::from_slice(&[0.0f32, 1.0], &[2])?)?.to_vec::<f32>()?;
/// assert!(y[0] == 0.0 && (y[1] - 0.841_344_7).abs() < 1e-6);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn gelu(x: &Array) -> Result<Array> {
    of_one("gelu", ActivationKind::Gelu, x)
}

/// The approximation of [`gelu`] that uses tanh:
/// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³)))`, with each step rounded to the type of
/// `x`, as in `mlx.nn.gelu_approx`.
///
/// The result has the shape and type of `x` (integers become float32). Differentiable in `x`.
///
/// # Cost
///
/// One kernel moves `2 s` elements for an `x` of s elements, and computes `9 s` operations, of
/// which s are hyperbolic tangents. The gradient takes one kernel and keeps `x` in memory.
///
/// # Errors
///
/// Returns an error if `x` is float64 or complex.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let y = ops::gelu_tanh(&Array::from_slice(&[0.0f32, 1.0], &[2])?)?.to_vec::<f32>()?;
/// assert!(y[0] == 0.0 && (y[1] - 0.841_192).abs() < 1e-6);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn gelu_tanh(x: &Array) -> Result<Array> {
    of_one("gelu_tanh", ActivationKind::GeluTanh, x)
}

/// The gated unit of a Llama's feed-forward layer ([Shazeer
/// 2020](https://arxiv.org/abs/2002.05202)): `silu(gate) * up`. The result of [`silu`] is rounded
/// before the multiplication.
///
/// The two arrays are broadcast to one shape and promoted to one type. The result has this shape
/// and type (integers become float32). Differentiable in both arrays.
///
/// # Cost
///
/// One kernel moves `3 s` elements for a result of s elements, and computes `5 s` operations. One
/// kernel computes both gradients. It keeps `gate` and `up` in memory, but not the result of
/// [`silu`].
///
/// # Errors
///
/// Returns an error if the shapes do not broadcast, or an array is float64 or complex.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let (gate, up) = (Array::from_slice(&[1.0f32], &[1])?, Array::from_slice(&[2.0f32], &[1])?);
/// let y = ops::swiglu(&gate, &up)?.to_vec::<f32>()?;
/// assert!((y[0] - 2.0 / (1.0 + (-1f32).exp())).abs() < 1e-6);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn swiglu(gate: &Array, up: &Array) -> Result<Array> {
    of_two("swiglu", ActivationKind::Swiglu, gate, up)
}

/// A gated unit ([Shazeer 2020](https://arxiv.org/abs/2002.05202)): `gelu(gate) * up`. The result
/// of [`gelu`] is rounded before the multiplication. Shapes, types and errors are as for
/// [`swiglu`]. Differentiable in both arrays.
///
/// # Cost
///
/// One kernel moves `3 s` elements for a result of s elements, and computes `6 s` operations. One
/// kernel computes both gradients. It keeps `gate` and `up` in memory, but not the result of
/// [`gelu`].
///
/// # Errors
///
/// Returns an error for arrays that [`swiglu`] refuses.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let (gate, up) = (Array::from_slice(&[1.0f32], &[1])?, Array::from_slice(&[2.0f32], &[1])?);
/// assert!((ops::geglu(&gate, &up)?.to_vec::<f32>()?[0] - 2.0 * 0.841_344_7).abs() < 1e-6);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn geglu(gate: &Array, up: &Array) -> Result<Array> {
    of_two("geglu", ActivationKind::Geglu, gate, up)
}

/// Gemma's gated unit: `gelu_tanh(gate) * up`. The result of [`gelu_tanh`] is rounded before the
/// multiplication. Shapes, types and errors are as for [`swiglu`]. Differentiable in both arrays.
///
/// # Cost
///
/// One kernel moves `3 s` elements for a result of s elements, and computes `10 s` operations. One
/// kernel computes both gradients. It keeps `gate` and `up` in memory, but not the result of
/// [`gelu_tanh`].
///
/// # Errors
///
/// Returns an error for arrays that [`swiglu`] refuses.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let (gate, up) = (Array::from_slice(&[1.0f32], &[1])?, Array::from_slice(&[2.0f32], &[1])?);
/// assert!((ops::geglu_tanh(&gate, &up)?.to_vec::<f32>()?[0] - 2.0 * 0.841_192).abs() < 1e-6);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn geglu_tanh(gate: &Array, up: &Array) -> Result<Array> {
    of_two("geglu_tanh", ActivationKind::GegluTanh, gate, up)
}

/// The rectified sum `max(a + b, 0)`. The sum is rounded before the maximum. Shapes, types and
/// errors are as for [`swiglu`]. Differentiable in both arrays.
///
/// # Cost
///
/// One kernel moves `3 s` elements for a result of s elements, and computes `2 s` operations. One
/// kernel computes both gradients. It keeps `a` and `b` in memory, but not the sum.
///
/// # Errors
///
/// Returns an error for arrays that [`swiglu`] refuses.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let a = Array::ones::<f32>(2)?;
/// let b = Array::from_slice(&[2.0f32, -2.0], &[2])?;
/// assert_eq!(ops::add_relu(&a, &b)?.to_vec::<f32>()?, [3.0, 0.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn add_relu(a: &Array, b: &Array) -> Result<Array> {
    of_two("add_relu", ActivationKind::AddRelu, a, b)
}

/// The rectified product `max(a * b, 0)`. The product is rounded before the maximum. Shapes, types
/// and errors are as for [`swiglu`]. Differentiable in both arrays.
///
/// # Cost
///
/// One kernel moves `3 s` elements for a result of s elements, and computes `2 s` operations. One
/// kernel computes both gradients. It keeps `a` and `b` in memory, but not the product.
///
/// # Errors
///
/// Returns an error for arrays that [`swiglu`] refuses.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let a = Array::ones::<f32>(2)?;
/// let b = Array::from_slice(&[2.0f32, -2.0], &[2])?;
/// assert_eq!(ops::mul_relu(&a, &b)?.to_vec::<f32>()?, [2.0, 0.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn mul_relu(a: &Array, b: &Array) -> Result<Array> {
    of_two("mul_relu", ActivationKind::MulRelu, a, b)
}

/// The affine map `x * scale + shift`. The product is rounded before `shift` is added.
///
/// `scale` and `shift` are each a scalar array or a vector as long as the last axis of `x`. The
/// three arrays are promoted to one type. Differentiable in all three arrays.
///
/// # Cost
///
/// One kernel moves `2 s + 2 n` elements for an `x` of s elements and vectors of n elements, and
/// computes `2 s` operations. The gradients keep `x` and `scale` in memory. If `scale` and `shift`
/// are vectors, a CPU computes all gradients in one kernel.
///
/// # Errors
///
/// Returns an error if `scale` or `shift` has another shape, or an array is float64 or complex.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let scale = Array::from_slice(&[10.0f32, 100.0], &[2])?;
/// let y = ops::affine(&x, &scale, &Array::scalar(1.0f32)?)?;
/// assert_eq!(y.to_vec::<f32>()?, [11.0, 201.0, 31.0, 401.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn affine(x: &Array, scale: &Array, shift: &Array) -> Result<Array> {
    chosen("affine", || rows(x), ffi::affine(x.raw(), scale.raw(), shift.raw()))
}
