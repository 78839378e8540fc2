//! Transposes the codes of sixteen rows of weights.

use std::array::from_fn;
use std::marker::PhantomData;
use std::ops::Range;

use super::super::format::Format;
use super::super::operands::Operands;
use crate::simd::{F32x16, Kernel, LANES, Lines, prefetch_far};

/// The number of bytes in a word.
pub const BYTES: usize = 4;
/// The largest number of weights of a row that are transposed at once.
pub const PART: usize = 512;
/// Scales, and weights that are transposed, are prefetched this many rows ahead of their loads.
pub const AHEAD: usize = 2 * LANES;
/// The number of bytes in a cache line.
pub const LINE: usize = 64;

/// Whether [`Words`] transposes words of eight codes before it separates them. Then a word of x has
/// the bytes of every other element, since a byte of weights has the codes of two neighbors.
pub const fn splits_pairs(affine: bool, bits: u32) -> bool {
    affine && bits == 4
}

/// The place of the element that becomes element `to`, if in each eight elements those with even
/// places move before the others.
pub fn before_odd(to: usize) -> usize {
    to / 8 * 8 + to % 4 * 2 + to / 4 % 2
}

/// The addresses of sixteen rows of weights.
pub struct Rows {
    /// The last row of weights replaces rows beyond it.
    pub packed: [*const u8; LANES],
    /// The number of bytes of a row.
    bytes: usize,
}

impl Rows {
    #[inline(always)]
    pub fn new(first: &Operands, count: usize) -> Self {
        let mut packed = [first.packed; LANES];
        for row in 1..LANES {
            packed[row] = packed[row - 1].wrapping_add(if row < count { first.bytes } else { 0 });
        }
        Self { packed, bytes: first.bytes }
    }

    /// The address of the rows that are prefetched meanwhile, `ahead` rows ahead.
    #[inline(always)]
    pub fn later(&self, ahead: usize) -> *const u8 {
        self.packed[0].wrapping_add(ahead * self.bytes)
    }
}

/// Writes codes of sixteen rows of weights to `to`: word i has four codes of each row, and is
/// sixteen floats after word i - 1. Also prefetches as many weights of later rows, in the order of
/// their addresses.
///
/// # Safety
/// The weights exist; their number is a multiple of 32 and at most [`PART`]. There is room for
/// `PART` weights of sixteen rows, and the machine has the features of the vectors.
pub unsafe fn words<V: F32x16, F: Format>(rows: &Rows, weights: Range<usize>, to: *mut f32) {
    let [at, bytes] = [weights.start, weights.len()].map(|weights| weights / 8 * F::BITS as usize);
    let (packed, later) = (&rows.packed, rows.later(AHEAD).wrapping_add(LANES * at));
    // SAFETY: the caller's contract.
    unsafe {
        if const { splits_pairs(F::AFFINE, F::BITS) } {
            return V::part(Words::<true> { packed, at, bytes, later, to });
        }
        if const { F::AFFINE && F::BITS == 8 } {
            return V::part(Words::<false> { packed, at, bytes, later, to });
        }
        let mut codes = Lines::<{ LANES * PART / BYTES }>::uninit();
        let codes = codes.as_mut_ptr().cast::<u8>();
        let bytes = weights.len();
        let format = PhantomData::<F>;
        V::part(Codes { packed, at, later, weights: bytes, to: codes, format });
        let packed: &[_; LANES] = &from_fn(|row| codes.cast_const().wrapping_add(row * PART));
        V::part(Words::<false> { packed, at: 0, bytes, later: codes, to });
    }
}

/// Writes the codes of sixteen rows as bytes, [`PART`] bytes for each row.
struct Codes<'a, F> {
    packed: &'a [*const u8; LANES],
    /// The first weights are this many bytes after the beginning of each row.
    at: usize,
    /// The address of weights to prefetch.
    later: *const u8,
    weights: usize,
    to: *mut u8,
    format: PhantomData<F>,
}

impl<F: Format> Kernel for Codes<'_, F> {
    const BF16: bool = true;
    const ONLY_BF16: bool = Self::BF16;
    const BYTES: bool = true;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        prefetch_far(self.later, LANES * self.weights / 8 * F::BITS as usize);
        for (row, packed) in self.packed.iter().enumerate() {
            let (from, to) = (packed.wrapping_add(self.at), self.to.wrapping_add(row * PART));
            // SAFETY: the contract of `words`.
            unsafe { codes::<V, F>(from, self.weights, to) };
        }
    }
}

/// Transposes words of four bytes, or with `NIBBLES` of eight codes of four bits, whose codes with
/// even indices are then one word, and the others the next word.
struct Words<'a, const NIBBLES: bool> {
    packed: &'a [*const u8; LANES],
    at: usize,
    /// The number of bytes of each row.
    bytes: usize,
    later: *const u8,
    to: *mut f32,
}

impl<const NIBBLES: bool> Kernel for Words<'_, NIBBLES> {
    const BF16: bool = true;
    const ONLY_BF16: bool = Self::BF16;
    const BYTES: bool = true;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { packed, at, bytes, later, mut to } = self;
        let mut copy = Lines::<{ LANES * LANES }>::uninit();
        let copy = copy.as_mut_ptr();
        let copies = from_fn(|row| copy.cast_const().wrapping_add(row * LANES).cast());
        for start in (0..bytes).step_by(LINE) {
            let (mut rows, mut from) = (packed, at + start);
            let words = (bytes - start).min(LINE) / BYTES;
            prefetch_far(later.wrapping_add(LANES * start), LANES * LINE);
            // SAFETY: the contract of `words`. Words after the last one are zeros.
            unsafe {
                if words < LANES {
                    for (row, packed) in packed.iter().enumerate() {
                        let from = packed.wrapping_add(from).cast();
                        V::load_first(from, words).store(copy.add(row * LANES));
                    }
                    (rows, from) = (&copies, 0);
                }
                V::transpose_words::<NIBBLES>(rows, from, to);
            }
            to = to.wrapping_add(if NIBBLES { 2 * LANES * LANES } else { LANES * LANES });
        }
    }
}

/// Writes the codes of `count` weights as bytes, in full lines. Affine codes do not have four or
/// eight bits. Codes of 4-bit floats become nonnegative integers.
#[inline(always)]
unsafe fn codes<V: F32x16, F: Format>(packed: *const u8, count: usize, out: *mut u8) {
    // SAFETY: the caller provides the weights and the bytes; `count` is a multiple of 32, so that
    // the weights of a part of a line are `BITS` words.
    unsafe {
        if const { F::AFFINE } {
            for at in (0..count).step_by(LINE) {
                let (from, codes) = (packed.add(at / 8 * F::BITS as usize), out.add(at).cast());
                if count - at >= LINE {
                    V::from_bits(load_codes::<V, F>(from)).store(codes);
                } else {
                    let mut copy = [0.0f32; LANES];
                    V::load_first(from.cast(), F::BITS as usize).store(copy.as_mut_ptr());
                    V::from_bits(load_codes::<V, F>(copy.as_ptr().cast())).store(codes);
                }
            }
            return;
        }
        for at in (0..count).step_by(LANES) {
            let codes = F::in_order::<V>(packed.add(at / 8 * F::BITS as usize));
            let codes = codes.mul_add(V::splat(2.0), V::splat(12.0));
            V::store_bytes(codes.to_int(), out.add(at));
        }
    }
}

/// Loads the codes of 64 weights as bytes, or with [`splits_pairs`] those of 128 weights, two in
/// each byte.
///
/// # Safety
/// The weights are readable; the format is affine.
#[inline(always)]
pub unsafe fn load_codes<V: F32x16, F: Format>(from: *const u8) -> V::Int {
    // SAFETY: the caller's contract.
    unsafe {
        match F::BITS {
            2 => V::load_codes::<2>(from),
            3 => V::load_codes::<3>(from),
            5 => V::load_codes::<5>(from),
            6 => V::load_codes::<6>(from),
            _ => V::load(from.cast()).to_bits(),
        }
    }
}
