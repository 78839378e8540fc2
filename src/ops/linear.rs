use super::Activation;
use crate::array::{Array, or_null, to_list};
use crate::error::Result;
use crate::ffi::ops::bridge::{self as ffi, ActivationKind};
use crate::tune::{chosen, rows};

/// The steps of [`linear`] after the product; none by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linear<'a> {
    /// Added to each row of the product: `[n]`.
    pub bias: Option<&'a Array>,
    /// Applied to the sum of product and bias.
    pub activation: Option<Activation>,
    /// Added last: `[..., n]`. The result takes over its buffer where nothing else reads it.
    pub residual: Option<&'a Array>,
}

/// A linear layer with the bias, activation and residual that follow it in a transformer:
/// `act(x · wᵀ + bias) + residual`.
///
/// `x` is `[..., k]`, `w` is `[n, k]` as linear layers keep their weights. The result is `[..., n]`
/// of the type that all inputs promote to. Products are summed in float32; then the product, the
/// sum with the bias, the activation and the sum with the residual are each rounded to that type,
/// as by separate ops. No bit of a row depends on other rows: see [`RowOrder`](super::RowOrder).
///
/// Differentiable in every array.
///
/// # Cost
///
/// One kernel moves `m k + n k + m n` elements for m rows, `n` more with a bias and `m n` more with
/// a residual, and computes `2 m k n` operations. Each gradient is one product, or a sum for the
/// bias; with an activation the product is computed again instead of kept.
///
/// # Errors
///
/// Returns an error for extents that do not match or a type other than float32, float16 and
/// bfloat16.
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

/// `silu(y · Gateᵀ) * (y · Upᵀ)` for `y`, the norm of x, with the bits of `rms_norm`, [`linear`]
/// and `swiglu`; `None` without a kernel for all steps: it is for one row on an NVIDIA GPU.
/// # Errors
/// Returns an error if MLX cannot be started.
pub fn gated_linear(inputs: [&Array; 4], eps: f32) -> Result<Option<Array>> {
    let built = ffi::gated_linear(&to_list(inputs), eps)?;
    if built.is_null() { Ok(None) } else { Array::from_bridge(Ok(built)).map(Some) }
}

/// The product of matrices: `a` is `[..., m, k]` and `b` is `[..., k, n]`; leading axes broadcast
/// and the result is `[..., m, n]`, of the type that both promote to.
///
/// Summed in float32 and rounded once. Differentiable in both.
///
/// # Cost
///
/// One kernel moves `m k + k n + m n` elements for each product of `[m, k]` and `[k, n]`, and
/// computes `2 m k n` operations. Each gradient is one product, and keeps the other matrix.
///
/// # Errors
///
/// Returns an error for rank below 2, extents that do not match or a type other than float32,
/// float16 and bfloat16.
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
/// as linear layers keep their weights; leading axes broadcast and the result is `[..., m, n]`, of
/// the type that both promote to.
///
/// Summed in float32 and rounded once. Differentiable in both.
///
/// # Cost
///
/// One kernel moves `m k + n k + m n` elements, and computes `2 m k n` operations, as in
/// [`matmul`].
///
/// # Errors
///
/// Returns an error for what [`matmul`] refuses.
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
