use crate::array::{Array, from_list};
use crate::error::Result;
use crate::ffi::ops::bridge as ffi;
use crate::tune::{chosen, rows};

/// The formula that turns a group of packed integers (codes) into numbers. It is the `mode` of
/// MLX's `quantize`.
///
/// Floats of 4 bits have two exponent bits and one mantissa bit. Floats of 8 bits have four
/// exponent bits and three mantissa bits. Neither format has infinities. A float of 8 bits is NaN
/// if all its bits except the sign are ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuantizedMode {
    /// `scale * q + bias` with integers q of 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128.
    Affine,
    /// [OCP
    /// microscaling](https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf):
    /// `2^(e - 127) * q` with 4-bit floats q, and one byte e for each group of 32.
    Mxfp4,
    /// `2^(e - 127) * q` with 8-bit floats q, and one byte e for each group of 32.
    Mxfp8,
    /// `scale * q` with 4-bit floats q. The scale is an 8-bit float for each group of 16; there is
    /// no additional scale for the matrix. The number of weights in a row is a multiple of 32.
    Nvfp4,
    /// The formats Q4_K, Q5_K and Q6_K of [GGUF files](crate::io::KQuants): `scale * q + bias` with
    /// q of 4 or 5 bits and groups of 32, or `scale * (q - 32)` with q of 6 bits and groups of 16.
    /// The number of weights in a row is a multiple of 256. Each block of 256 weights has 20 bytes
    /// of scales: two floats of 16 bits, then 16 integers of 8 bits. With 4 or 5 bits, the scales
    /// are the first eight integers times the first float, and the biases are the last eight
    /// integers times the second float. With 6 bits, 128 is subtracted from each integer, and the
    /// differences times the first float are the scales.
    ///
    /// The GPU kernels for this mode take float32. Products of other types unpack the matrix first.
    /// MLX itself does not have this mode, in `quantize` or in checkpoints.
    KQuant,
}

impl QuantizedMode {
    /// All modes.
    pub const ALL: [Self; 5] = [Self::Affine, Self::Mxfp4, Self::Mxfp8, Self::Nvfp4, Self::KQuant];

    /// MLX's name for the mode, such as `affine`. For K-quants, which MLX does not have, it is
    /// `k_quant`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Affine => "affine",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
            Self::KQuant => "k_quant",
        }
    }

    /// The group size and the bits of a mode that has only one layout. Returns `None` for
    /// [`Affine`](Self::Affine) and [`KQuant`](Self::KQuant), which have several layouts.
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

/// How the CPU kernels round `x` in products of `x` with packed weights. GPU kernels do not round
/// `x`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuActivations {
    /// The kernels do not round `x`. Sums are float32, and are rounded once to the result's type.
    #[default]
    Exact,
    /// The kernels round `x` to eight bits, with a scale for each group of weights. They do so only
    /// if the weights are not in the mode `Mxfp8`, if the product has no low-rank update, and if
    /// the CPU kernels multiply bytes (with AVX2 and all later instruction sets, or ARM's
    /// `dotprod`): see [`cpu_multiplies_bytes`](crate::device::cpu_multiplies_bytes). The error of
    /// normally distributed numbers is then 0.6 % (root mean square; rounding to bfloat16 has an
    /// error of 0.17 %), and the error of products is 0.6 % of their usual size. In all other cases
    /// the kernels do not round `x`, as with [`Exact`](Self::Exact). They do not round it for
    /// eight-bit weights on x86-64 without AVX-VNNI, or AVX-512 BF16 and VNNI, because products of
    /// one row with such weights would take longer there.
    ///
    /// A row has the same result in both [orders](super::RowOrder), except in bfloat16 on a
    /// processor with AMX. There the kernels do not round rows in the order of prompts, because
    /// their exact products are faster.
    Int8,
}

/// Packs each group of the last axis as small integers (codes) with a scale and a bias. Returns
/// `(packed, scales, biases)` in the layout of `mlx.quantize` with the mode `affine`, and equal to
/// its results in every bit, except for groups of negative numbers on a Mac's GPU (see below).
///
/// `x` is `[..., n]` of rank 2 or more, and `n` is a multiple of `group_size` (32, 64, 128). Codes
/// of `bits` bits (2, 3, 4, 5, 6, 8) are packed without gaps into uint32 words, lowest bits first.
/// `packed` is `[..., n * bits / 32]`. `scales` and `biases` are `[..., n / group_size]`, of the
/// type of `x`. An element is about `code * scale + bias`; a zero stays exactly zero.
///
/// A NaN gets the code 0. In a group of negative numbers, MLX's Metal kernel uses 0 as the maximum;
/// this op and MLX's CPU kernel use the true maximum. Derivatives are as for `mlx.quantize`.
///
/// # Cost
///
/// One kernel moves `s + s b / 32 + 2 s / g` elements in float32 for an `x` of s elements, b bits
/// and groups of g.
///
/// # Errors
///
/// Returns an error for other values of `group_size` and `bits`, if the rank is below 2, if the
/// last axis is not a multiple of the group size, or if the type is not float32, float16 or
/// bfloat16.
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

/// Unpacks the result of [`quantize`], whose documentation has an example. The result is
/// `code * scale + bias`, of shape `[..., n]` and of the type of the scales. It has the same bits
/// as `mlx.dequantize` on the CPU. The product is rounded to the type before the bias is added.
///
/// Differentiable in scales and biases.
///
/// # Cost
///
/// One kernel moves `s + s b / 32 + 2 s / g` elements in float32 for a result of s elements, b bits
/// and groups of g, and computes `2 s` operations.
///
/// # Errors
///
/// Returns an error for values of `group_size` and `bits` that [`quantize`] refuses, if the shapes
/// do not fit together, if `packed` is not uint32, or if the scales and biases differ in type or
/// are not float32, float16 or bfloat16.
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

/// Like [`dequantize`], but unpacks only the rows with the indices `ids`.
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
