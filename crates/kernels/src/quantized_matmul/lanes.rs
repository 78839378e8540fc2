//! Products of packed weights with a lane for each of sixteen rows of weights.
//!
//! The codes of a part of these rows are transposed in words of four codes (`words`), once for all
//! rows of x in a band (`block`), and their scales are transposed too (`scales`). If x is in bytes,
//! each word of x is multiplied with a vector of words (`bytes`), but a single row of x is
//! multiplied with codes that are not transposed (`direct`). If x is in f32 or in pairs of bf16,
//! the weights are decoded, and each element or pair of x is multiplied with a vector of weights
//! (`floats`).

mod block;
mod bytes;
mod direct;
mod floats;
mod scales;
mod words;

use std::ops::Range;

use super::columns::Columns;
use super::format::{Affine, Floats, Format};
use super::operands::{Kind, MOST_ROWS, Operands};
use super::prepare::OfX;
use super::{Call, Mode};
use crate::linear::arithmetic::{InBf16, InF32};
use crate::simd::{F32x16, Kernel, LANES};
use block::{Block, FEW, Multiply, Transpose};
use scales::OF_FLOATS;
use words::PART;
pub use words::{LINE, before_odd, splits_pairs};

/// Multiplies rows of x, which [`int8`](super::int8) prepared or which are in their place, with
/// columns of the result.
pub struct InLanes<'a>(pub Columns<'a>);

impl Kernel for InLanes<'_> {
    const BF16: bool = true;
    const ONLY_BF16: bool = Self::BF16;
    const BYTES: bool = true;
    const PAIRS: bool = true;
    const DOTS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Call { mode, bits, .. } = *self.0.call;
        let multiply = match (mode, bits) {
            (Mode::Mxfp4 | Mode::Nvfp4, _) => multiply::<V, Floats<4, false>>,
            (_, 2) => multiply::<V, Affine<2>>,
            (_, 3) => multiply::<V, Affine<3>>,
            (_, 4) => multiply::<V, Affine<4>>,
            (_, 5) => multiply::<V, Affine<5>>,
            (_, 6) => multiply::<V, Affine<6>>,
            _ => multiply::<V, Affine<8>>,
        };
        let affine = matches!(mode, Mode::Affine | Mode::KQuant);
        let bits = bits as usize;
        let kind = Kind { bits, affine, element: None, band: MOST_ROWS, multiply };
        // SAFETY: the caller's contract; the rows are prepared for these products.
        unsafe { self.0.run_by::<V>(kind) };
    }
}

/// # Safety
/// The contract of [`Kind::multiply`]; the machine has the features of the vectors.
unsafe fn multiply<V: F32x16, F: Format>(
    operands: Operands,
    count: usize,
    band: Range<usize>,
    to: *mut [f32; LANES],
) {
    let (affine, most) = (F::AFFINE, most_words(F::BITS, F::AFFINE));
    let apart = splits_pairs(F::AFFINE, F::BITS);
    let bias_factor = match (affine, operands.blocks) {
        (true, Some(blocks)) => blocks.bias_factor().unwrap_or(1.0),
        (true, None) => operands.bias_factor,
        (false, _) => OF_FLOATS.1,
    };
    let (of_x, rows) = (operands.prepared.of_x, band.len());
    let mut part = if of_x == OfX::Prepared && rows >= 8 { PART } else { FEW };
    let mut words: Option<Transpose> = Some(words::words::<V, F>);
    let mut products: Multiply = match of_x {
        OfX::Pairs if const { V::DOTS_BF16 } => floats::products::<V, InBf16>,
        OfX::Floats => floats::products::<V, InF32>,
        _ => bytes::products::<V>,
    };
    if const { direct::supports::<V, F>() } && of_x == OfX::Prepared && rows == 1 {
        (part, words, products) = (LANES * operands.group, None, direct::products::<V, F>);
    }
    let (first, to) = (operands, to.cast());
    let block =
        Block { first, count, band, to, affine, bias_factor, apart, most, part, words, products };
    // SAFETY: the caller's contract.
    unsafe { blocks::<V>(block) };
}

/// Multiplies rows of weights in blocks of sixteen. All formats share this function.
///
/// # Safety
/// The contract of [`Block`], for any number of rows.
#[inline(never)]
unsafe fn blocks<V: F32x16>(all: Block) {
    let (mut first, mut to) = (all.first, all.to);
    for from in (0..all.count).step_by(LANES) {
        let (count, band) = ((all.count - from).min(LANES), all.band.clone());
        // SAFETY: the caller's contract.
        unsafe { V::part(Block { first, count, band, to, ..all }) };
        first = first.below(LANES);
        to = to.wrapping_add(all.band.len() * LANES);
    }
}

/// The number of words that are added up in sums of sixteen bits, on CPUs that have no instruction
/// that adds products of bytes up in lanes of 32 bits. Before these sums can overflow, they are
/// added to sums of 32 bits. A pair of bytes adds at most twice 127 times the largest code. The
/// codes of formats that are not `affine` are 4-bit floats.
const fn most_words(bits: u32, affine: bool) -> usize {
    match bits {
        2..=4 if affine => 8,
        // Codes are at most 24 (4-bit floats) or 31 (5 bits).
        4 | 5 => 4,
        _ => 2,
    }
}
