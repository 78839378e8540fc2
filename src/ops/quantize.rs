use crate::array::{Array, from_list};
use crate::error::Result;
use crate::ffi::ops::bridge as ffi;
use crate::tune::{chosen, rows};

/// Packs each group of the last axis as small integers with a scale and a bias. Returns `(packed,
/// scales, biases)` in the layout of `mlx.quantize` with mode `affine`, equal to it in every bit.
///
/// `x` is `[..., n]` of rank 2 or more, `n` a multiple of `group_size` (32, 64, 128). Codes of
/// `bits` bits (2, 3, 4, 5, 6, 8) lie one after the other from the low end of uint32 words:
/// `packed` is `[..., n * bits / 32]`, scales and biases are `[..., n / group_size]` of the type of
/// `x`. An element is about `code * scale + bias`; a zero stays exactly zero.
///
/// A NaN gets the code 0. MLX's Metal kernel takes 0 for the largest element of a group of negative
/// ones; this op, like MLX's CPU kernel, takes the largest. Derivatives are as for `mlx.quantize`.
///
/// # Errors
///
/// Returns an error for other group sizes and bits, a last axis that is no multiple or a type other
/// than float32, float16 and bfloat16.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::arange::<f32>(0.0, 64.0, 1.0)?.reshape(&[1, 64])?;
/// let (packed, scales, biases) = ops::quantize(&x, 32, 8)?;
/// assert_eq!((packed.shape(), scales.shape()), (&[1, 16][..], &[1, 2][..]));
/// let back = ops::dequantize(&packed, &scales, &biases, 32, 8)?;
/// assert!(back.subtract(x)?.abs()?.max(..)?.item::<f32>()? < 0.1);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn quantize(x: &Array, group_size: i32, bits: i32) -> Result<(Array, Array, Array)> {
    let mut outputs = from_list(&*ffi::quantize(x.raw(), group_size, bits)?).into_iter();
    match (outputs.next(), outputs.next(), outputs.next()) {
        (Some(packed), Some(scales), Some(biases)) => Ok((packed, scales, biases)),
        _ => unreachable!("the primitive has three outputs"),
    }
}

/// Unpacks the result of [`quantize`], which has an example: `code * scale + bias`, `[..., n]` in
/// the type of the scales, equal in every bit to `mlx.dequantize` on the CPU. The product is
/// rounded to the type before the bias is added.
///
/// Differentiable in scales and biases.
///
/// # Errors
///
/// Returns an error for shapes that do not belong together, codes of another type than uint32,
/// scales and biases of different types or of one other than float32, float16 and bfloat16.
pub fn dequantize(
    packed: &Array,
    scales: &Array,
    biases: &Array,
    group_size: i32,
    bits: i32,
) -> Result<Array> {
    let built = ffi::dequantize(packed.raw(), scales.raw(), biases.raw(), group_size, bits);
    chosen(format_args!("dequantize, {bits} bits"), || rows(packed), built)
}

/// The rows `ids` of the matrix that [`dequantize`] unpacks.
pub(super) fn dequantize_rows(
    packed: &Array,
    scales: &Array,
    biases: &Array,
    ids: &Array,
    group_size: i32,
    bits: i32,
) -> Result<Array> {
    let parts = (packed.raw(), scales.raw(), biases.raw());
    let built = ffi::dequantize_rows(parts.0, parts.1, parts.2, ids.raw(), group_size, bits);
    chosen(format_args!("dequantize, {bits} bits"), || ids.size(), built)
}
