//! Transposes the codes and the scales of sixteen rows of weights.

use std::array::from_fn;
use std::marker::PhantomData;
use std::ops::Range;

use super::super::format::{Floats, Format, Scales};
use super::super::operands::Operands;
use crate::element::{Float, with_element};
use crate::simd::{F32x16, Kernel, LANES, Lines, prefetch_far};

/// The number of bytes in a word.
pub const BYTES: usize = 4;
/// The largest number of weights of a row that are transposed at once.
pub const PART: usize = 512;
/// Weights and scales are prefetched this many rows ahead of their loads.
pub const AHEAD: usize = 2 * LANES;
/// The number of bytes in a cache line.
pub const LINE: usize = 64;

/// Whether [`Words`] transposes words of eight codes before it separates them. Then a word of x has
/// the bytes of every other element, since a byte of weights has the codes of two neighbors.
pub const fn splits_pairs(affine: bool, bits: u32) -> bool {
    affine && bits == 4
}

/// The addresses of sixteen rows of weights.
pub struct Rows {
    /// The last row of weights replaces rows beyond it.
    packed: [*const u8; LANES],
    /// The address of the rows that are prefetched meanwhile.
    later: *const u8,
}

impl Rows {
    #[inline(always)]
    pub fn new(first: &Operands, count: usize) -> Self {
        let mut packed = [first.packed; LANES];
        for row in 1..LANES {
            packed[row] = packed[row - 1].wrapping_add(if row < count { first.bytes } else { 0 });
        }
        Self { packed, later: first.packed.wrapping_add(AHEAD * first.bytes) }
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
    let (packed, later) = (&rows.packed, rows.later.wrapping_add(LANES * at));
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

/// The code of a 4-bit float is twice the float, plus twelve. So its scale is half of the scale of
/// the float, and its bias is -12 times its scale.
pub const OF_FLOATS: (f32, f32) = (0.5, -12.0);

/// Writes scales of sixteen rows of weights to `to`, and biases [`LANES`] vectors after them. A
/// vector has the scales of a group. The last of the `count` rows replaces rows beyond it.
pub struct OfGroups<'a> {
    pub first: &'a Operands<'a>,
    pub count: usize,
    pub affine: bool,
    /// At most sixteen groups.
    pub groups: Range<usize>,
    pub to: *mut f32,
}

impl Kernel for OfGroups<'_> {
    const BF16: bool = true;
    const ONLY_BF16: bool = Self::BF16;
    const BYTES: bool = true;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Scales { element, scales, biases } = self.first.scales(None);
        let biases_at = LANES * LANES;
        let (unit, factor) = match self.affine {
            true => (1.0, self.first.bias_factor),
            false => OF_FLOATS,
        };
        let reads_biases = factor == 1.0;
        let mut rows = Lines::<{ LANES * LANES }>::uninit();
        let rows = rows.as_mut_ptr();
        let addresses = from_fn(|row| rows.cast_const().wrapping_add(row * LANES).cast());
        let sources = [(scales, 0), (biases, biases_at)];
        // SAFETY: the caller's contract; there is room for sixteen vectors, and as many again.
        unsafe {
            for (from, at) in sources.into_iter().take(1 + usize::from(reads_biases)) {
                match self.affine {
                    true => with_element!(element, T => self.load::<V, T>(from, rows)),
                    false => self.load_bytes::<V>(Scales { element, scales, biases }, rows),
                }
                V::transpose_words::<false>(&addresses, 0, self.to.add(at));
            }
            if reads_biases {
                return;
            }
            for at in (0..biases_at).step_by(LANES) {
                let scale = V::load(self.to.add(at)) * V::splat(unit);
                scale.store(self.to.add(at));
                (scale * V::splat(factor)).store(self.to.add(biases_at + at));
            }
        }
    }
}

impl OfGroups<'_> {
    /// The offset of the scales of each of the sixteen rows. The compiler does not know the number
    /// of rows, and so does not unroll loops over them, which would take 10 KB.
    #[inline(always)]
    fn rows(&self) -> impl Iterator<Item = usize> {
        let (count, bytes) = (self.count, self.first.scale_bytes);
        (0..count.next_multiple_of(LANES)).map(move |row| row.min(count - 1) * bytes)
    }

    /// Loads scales or biases, which begin at `from`, for each of the rows.
    #[inline(always)]
    unsafe fn load<V: F32x16, T: Float>(&self, from: *const u8, to: *mut f32) {
        let from = from.cast::<T>().wrapping_add(self.groups.start);
        let count = self.groups.len();
        // SAFETY: the caller's contract.
        unsafe {
            if count == LANES && self.count == LANES {
                for row in 0..LANES {
                    let from = from.wrapping_byte_add(row * self.first.scale_bytes);
                    T::load::<V>(from).store(to.add(row * LANES));
                }
                return;
            }
            for (row, offset) in self.rows().enumerate() {
                let from = from.wrapping_byte_add(offset);
                T::load_block::<V>(from, count).store(to.add(row * LANES));
            }
        }
    }

    /// Loads scales of one byte. Groups of `Nvfp4` have sixteen weights, and groups of `Mxfp4` have
    /// 32.
    #[inline(always)]
    unsafe fn load_bytes<V: F32x16>(&self, of: Scales, to: *mut f32) {
        let (at, count) = (self.groups.start, self.groups.len());
        for (row, offset) in self.rows().enumerate() {
            let of = of.after(offset);
            // SAFETY: the caller's contract.
            unsafe {
                let [scales, _] = match self.first.group {
                    16 => Floats::<4, true>::scales::<V>(&of, at, count),
                    _ => Floats::<4, false>::scales::<V>(&of, at, count),
                };
                scales.store(to.add(row * LANES));
            }
        }
    }
}
