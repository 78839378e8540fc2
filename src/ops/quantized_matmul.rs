use super::quantize::CpuActivations;
use super::quantized_weight::QuantizedWeight;
use crate::array::{Array, or_null, to_list};
use crate::error::{Error, Result};
use crate::ffi::ops::bridge as ffi;
use crate::tune::{chosen, rows};

/// The steps of [`quantized_linear`] before and after the product. By default there are none.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuantizedLinear<'a> {
    /// The vector `[n]` that is added to each row of the product.
    pub bias: Option<&'a Array>,
    /// The array `[..., n]` that is added last. If nothing else reads the residual, its buffer
    /// becomes the result's.
    pub residual: Option<&'a Array>,
    /// The weight `[k]` and the epsilon of an RMS normalization of `x` before the product. The
    /// normalization equals [`rms_norm`](crate::ops::rms_norm).
    pub norm: Option<(&'a Array, f32)>,
}

fn run(
    x: &Array,
    weights: &[&QuantizedWeight],
    options: QuantizedLinear<'_>,
    swiglu: bool,
) -> Result<Array> {
    let Some(first) = weights.first() else {
        return Err(Error::argument("quantized_linear", "at least one weight, got none"));
    };
    if let Some(other) = weights.iter().find(|weight| weight.format() != first.format()) {
        let (expected, got) = (first.format(), other.format());
        let expected = format_args!("weights of one format, got {expected:?} and {got:?}");
        return Err(Error::argument("quantized_linear", expected));
    }
    let arrays = to_list(weights.iter().flat_map(|weight| weight.arrays()));
    let (norm, eps) = options.norm.unzip();
    let name = if swiglu { "swiglu" } else { "linear" };
    let op = format_args!("quantized_{name}, {}", first.format_name());
    // SAFETY: the pointers are null or belong to borrowed arrays, which outlive the call.
    let built = unsafe {
        ffi::quantized_matmul(
            x.raw(),
            &arrays,
            &first.layout(),
            &ffi::QuantizedSteps {
                eps: eps.unwrap_or(0.0),
                swiglu,
                int8: first.activations == CpuActivations::Int8,
                centered: weights.iter().all(|weight| weight.centered),
            },
            or_null(norm),
            or_null(options.bias),
            or_null(options.residual),
        )
    };
    chosen(op, || rows(x), built)
}

/// `norm(x) · Wᵀ + bias + residual` with a packed weight. For up to eight rows of `x` it is one
/// dispatch, which reads the weight once.
///
/// `x` is `[..., k]` and the weight is `[n, k]`. The result is `[..., n]`, of the type that `x`,
/// the scales (unless they are bytes) and the arrays of the options promote to. Products accumulate
/// in float32. The normalized `x`, the product and each sum after it are rounded to the result's
/// type, as separate ops of MLX would do. The values of other rows do not change a bit of a row's
/// result. Their number may, unless [`RowOrder`](super::RowOrder) fixes the order of additions.
///
/// Differentiable in `x`, the norm's weight, the bias and the residual. Scales and biases of the
/// affine mode have first derivatives only.
///
/// # Cost
///
/// One kernel moves `m k + w + m n` elements for m rows, and computes `2 m k n` operations. Here w
/// is the size of the packed weight in bytes, divided by the size of an element. More than eight
/// rows with a norm take one more kernel. Without a norm, the gradient in `x` takes one kernel: no
/// unpacked weight is kept. Inputs of another type than the result are converted first. Only if
/// scales have 16 bits and the result is float32, a CPU's kernel converts them while it reads them.
///
/// # Errors
///
/// Returns an error if the shapes do not fit together, or a type is not float32, float16 or
/// bfloat16.
///
/// ```
/// use mlx_primitives::ops::{self, QuantizedMode, QuantizedLinear, QuantizedWeight};
/// use mlx_primitives::Array;
///
/// let w = Array::from_slice(&[0.5f32; 128], &[2, 64])?;
/// let w = QuantizedWeight::quantize(&w, 64, 4, QuantizedMode::Affine)?;
/// let x = Array::from_slice(&[1.0f32; 64], &[1, 64])?;
/// let y = ops::quantized_linear(&x, &w, QuantizedLinear::default())?;
/// assert_eq!(y.to_vec::<f32>()?, [32.0, 32.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn quantized_linear(
    x: &Array,
    weight: &QuantizedWeight,
    options: QuantizedLinear<'_>,
) -> Result<Array> {
    run(x, &[weight], options, false)
}

/// Up to three products of one input, such as queries, keys and values, in one dispatch. Joins the
/// results of [`quantized_linear`] along the last axis.
///
/// `x` is `[..., k]`, normalized first if `norm` is given: see [`QuantizedLinear::norm`]. The
/// weights have one format and the same `k`. Their `n` may differ: the result is `[..., sum of n]`.
///
/// # Cost
///
/// One kernel moves `m k + w + m n` elements, as in [`quantized_linear`], where n and w are the
/// sums over all weights.
///
/// # Errors
///
/// Returns an error if there is no weight or more than three, the weights differ in format or in
/// `k`, the last axis of `x` is not `k`, or a type is not floating-point.
///
/// ```
/// use mlx_primitives::Array;
/// use mlx_primitives::ops::{self, QuantizedMode, QuantizedWeight};
///
/// let packed = |value: f32, rows: usize| {
///     let w = Array::from_slice(&vec![value; rows * 64], [rows as i32, 64])?;
///     QuantizedWeight::quantize(&w, 64, 4, QuantizedMode::Affine)
/// };
/// let (queries, keys) = (packed(0.5, 2)?, packed(0.25, 1)?);
/// let x = Array::from_slice(&[1.0f32; 64], [1, 64])?;
/// let y = ops::quantized_linears(&x, &[&queries, &keys], None)?;
/// assert_eq!(y.to_vec::<f32>()?, [32.0, 32.0, 16.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn quantized_linears(
    x: &Array,
    weights: &[&QuantizedWeight],
    norm: Option<(&Array, f32)>,
) -> Result<Array> {
    run(x, weights, QuantizedLinear { norm, ..Default::default() }, false)
}

/// `silu(x · Gateᵀ) * (x · Upᵀ)` in one dispatch ([Shazeer
/// 2020](https://arxiv.org/abs/2002.05202)).
///
/// `x` is `[..., k]`, normalized first if `norm` is given: see [`QuantizedLinear::norm`]. Both
/// weights are `[n, k]` and have the same format. The result is `[..., n]`. Each product, the
/// sigmoid and both multiplications are rounded to the result's type.
///
/// # Cost
///
/// One kernel moves `m k + w + m n` elements, as in [`quantized_linear`], and computes `4 m k n`
/// operations. The gradient computes both products again instead of keeping them.
///
/// # Errors
///
/// Returns an error if the weights differ in format or shape, the last axis of `x` is not `k`, or a
/// type is not floating-point.
///
/// ```
/// use mlx_primitives::Array;
/// use mlx_primitives::ops::{self, QuantizedMode, QuantizedWeight};
///
/// let packed = |value: f32| {
///     let w = Array::from_slice(&[value; 64], [1, 64])?;
///     QuantizedWeight::quantize(&w, 64, 4, QuantizedMode::Affine)
/// };
/// let (gate, up) = (packed(1.0)?, packed(0.25)?);
/// let x = Array::from_slice(&[0.5f32; 64], [1, 64])?;
/// let y = ops::quantized_swiglu(&x, &gate, &up, None)?; // silu(32) is 32 here, and the other 8
/// assert_eq!(y.to_vec::<f32>()?, [256.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn quantized_swiglu(
    x: &Array,
    gate: &QuantizedWeight,
    up: &QuantizedWeight,
    norm: Option<(&Array, f32)>,
) -> Result<Array> {
    run(x, &[gate, up], QuantizedLinear { norm, ..Default::default() }, true)
}
