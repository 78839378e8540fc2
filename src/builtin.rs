//! MLX's own fused ops, under the names and with the arguments of our [`ops`](crate::ops), for
//! comparisons in tests and benchmarks.

use crate::array::{Array, from_list, or_null};
use crate::error::Result;
use crate::ffi;
use crate::ops::Rope;

/// `mlx.fast.layer_norm`, MLX's version of [`ops::layer_norm`](crate::ops::layer_norm). `x` is
/// `[..., n]`, `weight` and `bias` are `[n]` or `None`.
///
/// # Errors
///
/// Returns an error if `x` is a scalar, or `weight` or `bias` is not `[n]`.
pub fn layer_norm(
    x: &Array,
    weight: Option<&Array>,
    bias: Option<&Array>,
    eps: f32,
) -> Result<Array> {
    // SAFETY: the pointers are null or belong to borrowed arrays, which outlive the call.
    Array::from_bridge(unsafe {
        ffi::ops::bridge::builtin_layer_norm(x.raw(), or_null(weight), or_null(bias), eps)
    })
}

/// `mlx.fast.rms_norm`, MLX's version of [`ops::rms_norm`](crate::ops::rms_norm). `x` is
/// `[..., n]`, `weight` is `[n]` or `None`.
///
/// # Errors
///
/// Returns an error if `x` is a scalar, or `weight` is not `[n]`.
pub fn rms_norm(x: &Array, weight: Option<&Array>, eps: f32) -> Result<Array> {
    // SAFETY: the pointer is null or belongs to a borrowed array, which outlives the call.
    Array::from_bridge(unsafe { ffi::ops::bridge::builtin_rms_norm(x.raw(), or_null(weight), eps) })
}

/// `mlx.matmul`, with the arguments of [`Array::matmul`].
///
/// # Errors
///
/// Returns an error in the cases of [`Array::matmul`].
pub fn matmul(a: &Array, b: &Array) -> Result<Array> {
    Array::from_bridge(ffi::bridge::binary(ffi::bridge::BinaryOp::Matmul, a.raw(), b.raw()))
}

/// `mlx.softmax` over the last axis with `precise` accumulation in float32, MLX's version of
/// [`ops::softmax`](crate::ops::softmax).
///
/// # Errors
///
/// Returns an error if `x` is a scalar.
pub fn softmax(x: &Array) -> Result<Array> {
    Array::from_bridge(ffi::ops::bridge::builtin_softmax(x.raw(), true))
}

/// `mlx.fast.rope`, MLX's version of [`ops::rope`](crate::ops::rope). `x` is
/// `[batch, ..., time, features]`.
///
/// # Errors
///
/// Returns an error if `x` has fewer than three axes, if both or neither of `base` and `freqs` are
/// given, or if `mlx.fast.rope` refuses the shape of the offset or of the frequencies.
pub fn rope(x: &Array, rotation: Rope<'_>) -> Result<Array> {
    let Rope { dims, traditional, base, scale, offset, freqs } = rotation;
    let offset = offset.to_array()?;
    let base = base.as_ref().map_or(std::ptr::null(), |base| base as *const f32);
    // SAFETY: both pointers are null or belong to borrowed values, which outlive the call.
    Array::from_bridge(unsafe {
        ffi::ops::bridge::builtin_rope(
            x.raw(),
            dims,
            traditional,
            base,
            scale,
            offset.raw(),
            or_null(freqs),
        )
    })
}

/// Builds a graph of MLX's own ops that computes the same values as `ours`, a lazy result of one of
/// our ops. Returns an array for each output of the op.
///
/// # Errors
///
/// Returns an error if the array is already evaluated, or is not the result of one of our ops.
///
/// ```
/// use mlx_primitives::{Array, builtin, ops};
///
/// let y = ops::softmax(&Array::from_slice(&[1.0f32, 2.0], &[1, 2])?)?;
/// let peer = &builtin::composition(&y)?[0];
/// assert_eq!(y.primitive().as_deref(), Some("Softmax"));
/// assert_eq!(peer.primitive(), y.primitive());
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn composition(ours: &Array) -> Result<Vec<Array>> {
    Ok(from_list(&*ffi::bridge::composition(ours.raw())?))
}
