use crate::array::{Array, from_list};
use crate::error::Result;
use crate::ffi::ops::bridge as ffi;
use crate::tune::{chosen, rows};

/// The formula by which a group of codes becomes numbers, as `mode` in MLX's `quantize`.
///
/// Floats of 4 bits have two exponent bits and one mantissa bit; floats of 8 bits have four
/// exponent bits and three mantissa bits. There are no infinities. A float of 8 bits is NaN if all
/// bits but the sign are ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuantizedMode {
    /// `scale * q + bias` with q of 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128.
    Affine,
    /// [OCP
    /// microscaling](https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf):
    /// `2^(e - 127) * q` with 4-bit floats q, and for each group of 32 one byte e.
    Mxfp4,
    /// `2^(e - 127) * q` with 8-bit floats q, and for each group of 32 one byte e.
    Mxfp8,
    /// `scale * q` with 4-bit floats q and for each group of 16 an 8-bit float as its scale,
    /// without a scale of the whole matrix. The number of weights in a row is a multiple of 32.
    Nvfp4,
    /// The numbers of Q4_K, Q5_K and Q6_K in [GGUF files](crate::io::KQuants), which MLX does not
    /// have: `scale * q + bias` with q of 4 or 5 bits and groups of 32, or `scale * (q - 32)` with
    /// q of 6 bits and groups of 16. A row is whole blocks of 256 weights. Each block has 20 bytes
    /// of scales: two floats of 16 bits, then 16 integers of 8 bits. With 4 or 5 bits the first
    /// eight integers times the first float are the scales, and the others times the second are the
    /// biases. With 6 bits the scales are the integers less 128, times the first float.
    ///
    /// GPUs have kernels for this mode in float32; products of other types unpack the matrix first.
    /// MLX's `quantize` and its checkpoints do not have this mode.
    KQuant,
}

impl QuantizedMode {
    /// Every mode.
    pub const ALL: [Self; 5] = [Self::Affine, Self::Mxfp4, Self::Mxfp8, Self::Nvfp4, Self::KQuant];

    /// MLX's name for the mode, such as `affine`; `k_quant` for K-quants, which MLX does not have.
    pub fn name(self) -> &'static str {
        match self {
            Self::Affine => "affine",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
            Self::KQuant => "k_quant",
        }
    }

    /// The group size and the bits of a mode that has only one layout; `None` for
    /// [`Affine`](Self::Affine) and [`KQuant`](Self::KQuant), which have several.
    pub fn only_layout(self) -> Option<(i32, i32)> {
        match self {
            Self::Affine | Self::KQuant => None,
            Self::Mxfp4 => Some((32, 4)),
            Self::Mxfp8 => Some((32, 8)),
            Self::Nvfp4 => Some((16, 4)),
        }
    }

    pub(super) fn raw(self) -> ffi::QuantizedMode {
        match self {
            Self::Affine => ffi::QuantizedMode::Affine,
            Self::Mxfp4 => ffi::QuantizedMode::Mxfp4,
            Self::Mxfp8 => ffi::QuantizedMode::Mxfp8,
            Self::Nvfp4 => ffi::QuantizedMode::Nvfp4,
            Self::KQuant => ffi::QuantizedMode::KQuant,
        }
    }
}

/// How the CPU kernels round `x` in products of `x` with packed weights. GPUs do not round it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuActivations {
    /// `x` is not rounded. Sums are float32, and rounded once to the dtype.
    #[default]
    Exact,
    /// `x` is rounded to eight bits, with a scale for each group of weights, if its rows have the
    /// [order](super::RowOrder) of prompts, and if the CPU kernels multiply bytes (AVX-512 VNNI,
    /// ARM's `dotprod`, or AVX2 alone), as
    /// [`cpu_multiplies_bytes`](crate::device::cpu_multiplies_bytes) tells. Normally distributed
    /// numbers are then off by 0.6 % (root mean square; bfloat16 rounds by 0.17 %), and products by
    /// 0.6 % of their usual size. All other products are [`Exact`](Self::Exact). So are products
    /// with eight-bit weights on AVX2, where bytes save no time, and bfloat16 products on a
    /// processor with AMX, where rounding saved no time (measured with 4 and 8 bits in groups of 64
    /// and 128).
    Int8,
}

/// Packs each group of the last axis as small integers with a scale and a bias. Returns `(packed,
/// scales, biases)` in the layout of `mlx.quantize` with mode `affine`, equal to it in every bit.
///
/// `x` is `[..., n]` of rank 2 or more, `n` a multiple of `group_size` (32, 64, 128). Codes of
/// `bits` bits (2, 3, 4, 5, 6, 8) lie one after the other from the low end of uint32 words:
/// `packed` is `[..., n * bits / 32]`, scales and biases are `[..., n / group_size]` of the type of
/// `x`. An element is about `code * scale + bias`; a zero stays exactly zero.
///
/// A NaN gets the code 0. In a group of negative numbers, MLX's Metal kernel takes 0 as the
/// largest; this op and MLX's CPU kernel take the largest number. Derivatives are as for
/// `mlx.quantize`.
///
/// # Cost
///
/// One kernel moves `s + s b / 32 + 2 s / g` elements in float32 for an `x` of s, b bits and groups
/// of g.
///
/// # Errors
///
/// Returns an error for other group sizes and bits, a last axis that is not a multiple of the group
/// size, or a type other than float32, float16 and bfloat16.
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
/// # Cost
///
/// One kernel moves `s + s b / 32 + 2 s / g` elements in float32 for a result of s, b bits and
/// groups of g, and computes `2 s` operations.
///
/// # Errors
///
/// Returns an error for shapes that do not belong together, codes that are not uint32, and scales
/// and biases of different types or not of float32, float16 or bfloat16.
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
