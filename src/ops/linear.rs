use super::Activation;
use crate::array::{Array, or_null, to_list};
use crate::error::Result;
use crate::ffi::ops::bridge::{self as ffi, ActivationKind};
use crate::tune::{chosen, rows};

/// The steps of [`linear`] after the product. By default there are none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linear<'a> {
    /// The vector `[n]` that is added to each row of the product.
    pub bias: Option<&'a Array>,
    /// The function that is applied after the bias is added.
    pub activation: Option<Activation>,
    /// The array `[..., n]` that is added last. If nothing else reads the residual, its buffer
    /// becomes the result's.
    pub residual: Option<&'a Array>,
}

/// A linear layer, with a bias, an activation and a residual connection:
/// `act(x · wᵀ + bias) + residual`.
///
/// `x` is `[..., k]`, and `w` is `[n, k]`, the usual layout of a linear layer's weight. The result
/// is `[..., n]` of the type that all inputs promote to. Products are summed in float32. The
/// product, the sum with the bias, the activation and the sum with the residual are each rounded to
/// that type, as separate ops would do. The values of other rows do not change a bit of a row's
/// result. Their number may, unless [`RowOrder`](super::RowOrder) fixes the order of additions.
///
/// Differentiable in all arrays.
///
/// # Cost
///
/// One kernel moves `m k + n k + m n` elements for m rows, `n` more with a bias and `m n` more with
/// a residual, and computes `2 m k n` operations. The gradient of `x` and of `w` is one product
/// each, and the gradient of the bias is a sum. With an activation, a function that `vjp` or `grad`
/// differentiates runs the product and the activation as separate kernels, and keeps the sum before
/// the activation in memory.
///
/// Inputs of another type than the result are converted first. Only if `w` has 16 bits and the
/// result is float32, a CPU's kernel converts `w` while it reads it.
///
/// # Errors
///
/// Returns an error if the dimensions do not match, or a type is not float32, float16 or bfloat16.
///
/// ```
/// use mlx_primitives::ops::{self, Activation, Linear};
/// use mlx_primitives::Array;
///
/// let x = Array::from_slice(&[1.0f32, 2.0], &[1, 2])?;
/// let w = Array::from_slice(&[1.0f32, 0.0, 0.0, -1.0, 1.0, 1.0], &[3, 2])?;
/// let bias = Array::from_slice(&[0.5f32, 0.5, 0.5], &[3])?;
/// let options =
///     Linear { bias: Some(&bias), activation: Some(Activation::Relu), ..Default::default() };
/// assert_eq!(ops::linear(&x, &w, options)?.to_vec::<f32>()?, [1.5, 0.0, 3.5]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn linear(x: &Array, w: &Array, options: Linear<'_>) -> Result<Array> {
    let Linear { bias, activation, residual } = options;
    let activation = activation.map_or(ActivationKind::None, Activation::kind);
    // SAFETY: the pointers are null or belong to borrowed arrays, which outlive the call.
    let built =
        unsafe { ffi::linear(x.raw(), w.raw(), or_null(bias), activation, or_null(residual)) };
    chosen("linear", || rows(x), built)
}

/// `silu(y · Gateᵀ) * (y · Upᵀ)`, where `y` is the RMS norm of `x`, in one node. The result has the
/// same bits as `rms_norm`, [`linear`] and `swiglu`. `inputs` are x, Gate, Up and the norm's
/// weight, of one 16-bit type. The node exists on an NVIDIA GPU for one row x, with a multiple of 8
/// elements, in the row order `Tokens` and without derivatives; otherwise the function returns
/// `None`. The node runs one kernel, unless the row is too long for it.
/// # Errors
/// Returns an error if MLX cannot be started.
pub fn gated_linear(inputs: [&Array; 4], eps: f32) -> Result<Option<Array>> {
    let built = ffi::gated_linear(&to_list(inputs), eps)?;
    if built.is_null() { Ok(None) } else { Array::from_bridge(Ok(built)).map(Some) }
}

/// The product of two matrices: `a` is `[..., m, k]` and `b` is `[..., k, n]`. Leading axes
/// broadcast. The result is `[..., m, n]`, of the type that `a` and `b` promote to.
///
/// Terms are summed in float32, and the sum is rounded once. Differentiable in both matrices.
///
/// # Cost
///
/// One kernel moves `m k + k n + m n` elements for each product of `[m, k]` and `[k, n]`, and
/// computes `2 m k n` operations. The gradient in `a` is one product with `b`, and the gradient in
/// `b` is one product with `a`.
///
/// # Errors
///
/// Returns an error if a rank is below 2, the dimensions do not match, or a type is not float32,
/// float16 or bfloat16.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let a = Array::from_slice(&[1.0f32, 2.0], (1, 2))?;
/// let b = Array::from_slice(&[3.0f32, 4.0], (2, 1))?;
/// assert_eq!(ops::matmul(&a, &b)?.to_vec::<f32>()?, [11.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn matmul(a: &Array, b: &Array) -> Result<Array> {
    chosen("matmul", || rows(a), ffi::matmul(a.raw(), b.raw(), false))
}

/// The product of a matrix and a transposed matrix: `a` is `[..., m, k]` and `b` is `[..., n, k]`,
/// the usual layout of a linear layer's weight. Leading axes broadcast. The result is
/// `[..., m, n]`, of the type that `a` and `b` promote to.
///
/// Terms are summed in float32, and the sum is rounded once. Differentiable in both matrices.
///
/// # Cost
///
/// One kernel moves `m k + n k + m n` elements, and computes `2 m k n` operations, as in
/// [`matmul`].
///
/// # Errors
///
/// Returns an error for arrays that [`matmul`] refuses.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[1.0f32, 2.0], (1, 2))?;
/// let w = Array::from_slice(&[3.0f32, 4.0, 5.0, 6.0], (2, 2))?;
/// assert_eq!(ops::matmul_nt(&x, &w)?.to_vec::<f32>()?, [11.0, 17.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn matmul_nt(a: &Array, b: &Array) -> Result<Array> {
    chosen("matmul", || rows(a), ffi::matmul(a.raw(), b.raw(), true))
}
