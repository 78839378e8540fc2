//! Transposes the codes and the scales of sixteen rows of weights.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::format::{Floats, Format};
use super::super::operands::Operands;
use super::{AHEAD, BYTES, PART};
use crate::element::{Float, with_element};
use crate::simd::{F32x16, Kernel, LANES, Lines, prefetch_far};

/// Whether [`Words`] transposes words of eight codes before it separates them. Then a word of x has
/// the bytes of every other element, since a byte of weights has the codes of two neighbors.
pub const fn splits_pairs(affine: bool, bits: u32) -> bool {
    affine && bits == 4
}

/// Writes codes of sixteen rows of weights to `to`: word i has four codes of each row, and is
/// sixteen floats after word i - 1. The last of the `count` rows replaces rows beyond it. Also
/// prefetches as many weights of later rows.
///
/// # Safety
/// The weights exist; their number is a multiple of 32 and at most [`PART`]. There is room for
/// `PART` weights of sixteen rows, and the machine has the features of the vectors.
pub unsafe fn words<V: F32x16, F: Format>(
    first: &Operands,
    count: usize,
    weights: Range<usize>,
    to: *mut f32,
) {
    let Operands { mut packed, bytes, .. } = *first;
    packed = packed.wrapping_add(weights.start / 8 * F::BITS as usize);
    let ahead = AHEAD * bytes + (LANES - 1) * weights.start / 8 * F::BITS as usize;
    let ahead = packed.wrapping_add(ahead);
    let weights = weights.len();
    let rows = Rows { packed, bytes, count, ahead };
    // SAFETY: the caller's contract.
    unsafe {
        if const { splits_pairs(F::AFFINE, F::BITS) } {
            return V::part(Words::<true> { rows, weights, to });
        }
        if const { F::AFFINE && F::BITS == 8 } {
            return V::part(Words::<false> { rows, weights, to });
        }
        let mut codes = Lines::<{ LANES * PART / BYTES }>::uninit();
        let codes = codes.as_mut_ptr().cast();
        V::part(Codes::<F> { rows, weights, to: codes, format: PhantomData });
        let rows = Rows { packed: codes, bytes: PART, count: LANES, ahead: codes };
        V::part(Words::<false> { rows, weights, to });
    }
}

/// A part of sixteen rows of weights.
#[derive(Clone, Copy)]
struct Rows {
    packed: *const u8,
    /// The number of bytes from one row to the next.
    bytes: usize,
    /// The last of the `count` rows replaces rows beyond it.
    count: usize,
    /// The address of weights to prefetch.
    ahead: *const u8,
}

impl Rows {
    #[inline(always)]
    fn row(&self, row: usize) -> *const u8 {
        self.packed.wrapping_add(row.min(self.count - 1) * self.bytes)
    }

    /// Prefetches `bytes` bytes, and moves on by as many.
    #[inline(always)]
    fn prefetch(&mut self, bytes: usize) {
        prefetch_far(self.ahead, bytes);
        self.ahead = self.ahead.wrapping_add(bytes);
    }
}

/// Writes the codes of sixteen rows as bytes, [`PART`] bytes for each row.
struct Codes<F> {
    rows: Rows,
    weights: usize,
    to: *mut u8,
    format: PhantomData<F>,
}

impl<F: Format> Kernel for Codes<F> {
    const BF16: bool = true;
    const ONLY_BF16: bool = Self::BF16;
    const BYTES: bool = true;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { mut rows, weights, to, .. } = self;
        for row in 0..LANES {
            rows.prefetch(weights / 8 * F::BITS as usize);
            // SAFETY: the contract of `words`.
            unsafe { codes::<V, F>(rows.row(row), weights, to.add(row * PART)) };
        }
    }
}

/// Transposes words of four bytes, or with `NIBBLES` of eight codes of four bits, whose codes with
/// even indices are then one word, and the others the next word.
struct Words<const NIBBLES: bool> {
    rows: Rows,
    weights: usize,
    to: *mut f32,
}

impl<const NIBBLES: bool> Kernel for Words<NIBBLES> {
    const BF16: bool = true;
    const ONLY_BF16: bool = Self::BF16;
    const BYTES: bool = true;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { mut rows, weights, mut to } = self;
        let words = weights / if NIBBLES { 2 * BYTES } else { BYTES };
        let mask = V::splat_int(0x0f0f_0f0f);
        for at in (0..words).step_by(LANES) {
            let mut part = [V::splat(0.0); LANES];
            // SAFETY: the contract of `words`.
            unsafe {
                for (row, part) in part.iter_mut().enumerate() {
                    rows.prefetch(LANES * BYTES);
                    let from = rows.row(row).cast::<f32>().wrapping_add(at);
                    *part = match words - at {
                        LANES.. => V::load(from),
                        fewer => V::load_first(from, fewer),
                    };
                }
                for codes in V::transpose(part) {
                    if NIBBLES {
                        let codes = codes.to_bits();
                        V::from_bits(V::and_int(codes, mask)).store(to);
                        let high = V::and_int(V::shift_right::<4>(codes), mask);
                        V::from_bits(high).store(to.wrapping_add(LANES));
                        to = to.wrapping_add(2 * LANES);
                    } else {
                        codes.store(to);
                        to = to.wrapping_add(LANES);
                    }
                }
            }
        }
    }
}

/// Returns the scale and the bias of codes of 4-bit floats. The code is twice the float, plus
/// twelve.
#[inline(always)]
fn of_codes<V: F32x16>(scale: V) -> [V; 2] {
    let scale = scale * V::splat(0.5);
    [scale, scale * V::splat(-12.0)]
}

/// Writes the codes of `count` weights as bytes. The weights are complete groups. Codes of 4-bit
/// floats become nonnegative integers.
#[inline(always)]
unsafe fn codes<V: F32x16, F: Format>(packed: *const u8, count: usize, out: *mut u8) {
    // SAFETY: the caller provides the weights and the bytes; groups are multiples of 32.
    unsafe {
        for at in (0..count).step_by(LANES) {
            let mut codes = F::in_order::<V>(packed.add(at / 8 * F::BITS as usize));
            if !F::AFFINE {
                codes = codes.mul_add(V::splat(2.0), V::splat(12.0));
            }
            V::store_bytes(codes.to_int(), out.add(at));
        }
    }
}

/// Writes scales of sixteen rows of weights to `to`, and biases [`LANES`] vectors after them. A
/// vector has the scales of a group. The last of the `count` rows replaces rows beyond it.
pub struct Scales<'a> {
    pub first: &'a Operands<'a>,
    pub count: usize,
    pub affine: bool,
    /// At most sixteen groups.
    pub groups: Range<usize>,
    pub to: *mut f32,
}

impl Kernel for Scales<'_> {
    const BF16: bool = true;
    const ONLY_BF16: bool = Self::BF16;
    const BYTES: bool = true;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let of = self.first.scales(None);
        let biases_at = LANES * LANES;
        // SAFETY: the caller's contract; there is room for sixteen vectors, and as many again.
        unsafe {
            if !self.affine {
                let mut rows = [V::splat(0.0); LANES];
                for (row, scales) in rows.iter_mut().enumerate() {
                    let of = of.after(self.row(row) * self.first.scale_bytes);
                    let (at, count) = (self.groups.start, self.groups.len());
                    // Groups of `Nvfp4` have sixteen weights, and groups of `Mxfp4` have 32.
                    *scales = match self.first.group {
                        16 => Floats::<4, true>::scales::<V>(&of, at, count)[0],
                        _ => Floats::<4, false>::scales::<V>(&of, at, count)[0],
                    };
                }
                for (group, scale) in V::transpose(rows).into_iter().enumerate() {
                    let [scale, bias] = of_codes(scale);
                    scale.store(self.to.add(group * LANES));
                    bias.store(self.to.add(biases_at + group * LANES));
                }
                return;
            }
            with_element!(of.element, T => {
                self.spread::<V, T>(of.scales, self.to);
                if self.first.bias_factor == 1.0 {
                    return self.spread::<V, T>(of.biases, self.to.add(biases_at));
                }
            });
            for at in (0..biases_at).step_by(LANES) {
                let scale = V::load(self.to.add(at));
                (scale * V::splat(self.first.bias_factor)).store(self.to.add(biases_at + at));
            }
        }
    }
}

impl Scales<'_> {
    /// The row of weights that is taken for a lane.
    #[inline(always)]
    fn row(&self, lane: usize) -> usize {
        lane.min(self.count - 1)
    }

    /// Writes a vector for each group of the rows at `from`.
    #[inline(always)]
    unsafe fn spread<V: F32x16, T: Float>(&self, from: *const u8, to: *mut f32) {
        let from = from.cast::<T>().wrapping_add(self.groups.start);
        let mut rows = [V::splat(0.0); LANES];
        // SAFETY: the caller's contract.
        unsafe {
            for (row, scales) in rows.iter_mut().enumerate() {
                let from = from.wrapping_byte_add(self.row(row) * self.first.scale_bytes);
                *scales = T::load_block(from, self.groups.len());
            }
            for (group, scales) in V::transpose(rows).into_iter().enumerate() {
                scales.store(to.add(group * LANES));
            }
        }
    }
}
