//! Transposes the scales of sixteen rows of weights.

use std::array::from_fn;
use std::ops::Range;

use super::super::format::{Floats, Format, Scales};
use super::super::k_quant::{BLOCK, Blocks, SCALE_BYTES};
use super::super::operands::Operands;
use super::words::{BYTES, LINE};
use crate::element::{Float, with_element};
use crate::simd::{F32x16, Kernel, LANES, Lines};

/// The code of a 4-bit float is twice the float, plus twelve. So its scale is half of the scale of
/// the float, and its bias is -12 times its scale.
pub const OF_FLOATS: (f32, f32) = (0.5, -12.0);

/// The number of words of a K-quant's scales.
const WORDS: usize = SCALE_BYTES / BYTES;

/// Writes scales of sixteen rows of weights to `to`, and biases [`LANES`] vectors after them,
/// unless each bias is the scale times a factor. A vector has the scales of a group. The last of
/// the `count` rows replaces rows beyond it.
pub struct OfGroups<'a> {
    pub first: &'a Operands<'a>,
    pub count: usize,
    pub affine: bool,
    pub reads_biases: bool,
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
        let mut rows = Lines::<{ 2 * APART }>::uninit();
        let rows = rows.as_mut_ptr();
        // SAFETY: the caller's contract; there is room for sixteen vectors, and as many again.
        unsafe {
            if let Some(blocks) = self.first.blocks {
                return self.of_blocks::<V>(blocks, scales, rows);
            }
            match self.affine {
                true => with_element!(element, T => {
                    self.load::<V, T>(scales, rows);
                    if self.reads_biases {
                        self.load::<V, T>(biases, rows.add(APART));
                    }
                }),
                false => self.load_bytes::<V>(Scales { element, scales, biases }, rows),
            }
            for at in (0..2 * APART).step_by(APART).take(1 + usize::from(self.reads_biases)) {
                V::transpose_words::<false>(&addresses(rows.add(at)), 0, self.to.add(at));
            }
        }
    }
}

/// The addresses of sixteen consecutive vectors.
#[inline(always)]
fn addresses(first: *mut f32) -> [*const u8; LANES] {
    from_fn(|row| first.cast_const().wrapping_add(row * LANES).cast())
}

/// The number of floats from the scales of sixteen rows and groups to their biases.
pub const APART: usize = LANES * LANES;

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

    /// Writes the scales, and the biases if they are read, of K-quants, whose blocks begin at
    /// `from`. `rows` has room for 32 vectors.
    #[inline(always)]
    unsafe fn of_blocks<V: F32x16>(&self, blocks: Blocks, from: *const u8, rows: *mut f32) {
        let count = self.groups.len() * self.first.group / BLOCK;
        let start = Blocks::bytes(self.groups.start * self.first.group);
        let from = from.wrapping_add(start);
        // SAFETY: the caller's contract; rows are full blocks. Words after the last one of a row
        // are zeros, or words of later blocks.
        unsafe {
            let words = rows.add(APART);
            if self.first.scale_bytes - start >= LINE {
                let mut blocks = [from; LANES];
                for (to, offset) in blocks.iter_mut().zip(self.rows()) {
                    *to = from.wrapping_add(offset);
                }
                V::transpose_words::<false>(&blocks, 0, words);
            } else {
                for (row, offset) in self.rows().enumerate() {
                    let from = from.wrapping_add(offset).cast();
                    V::load_first(from, WORDS * count).store(rows.add(row * LANES));
                }
                V::transpose_words::<false>(&addresses(rows), 0, words);
            }
            match blocks.bias_factor().is_some() {
                true => self.of_words::<V, true>(words, count),
                false => self.of_words::<V, false>(words, count),
            }
        }
    }

    /// Writes the scales, and the biases if they are read, of `count` blocks of K-quants, whose
    /// transposed words begin at `words`. If a block is `CENTERED`, its groups have no biases.
    #[inline(always)]
    unsafe fn of_words<V: F32x16, const CENTERED: bool>(
        &self,
        mut words: *const f32,
        count: usize,
    ) {
        let byte = V::splat_int(0xff);
        let mut to = self.to;
        // SAFETY: the caller's contract.
        unsafe {
            for _ in 0..count {
                // A block has two floats of 16 bits, then sixteen integers. The second half of the
                // integers is for biases, unless there are none.
                let both = V::load(words).to_bits();
                let step = V::from_f16(V::narrow(V::and_int(both, V::splat_int(0xffff))));
                let next = V::from_f16(V::narrow(V::shift_right::<16>(both)));
                words = words.add(LANES);
                let half = LANES / 2 * LANES;
                let second = if CENTERED { (step, to.add(half)) } else { (next, to.add(APART)) };
                for (step, mut to) in [(step, to), second] {
                    for _ in 0..(WORDS - 1) / 2 {
                        let mut integers = V::load(words).to_bits();
                        words = words.add(LANES);
                        for _ in 0..BYTES {
                            let mut integer = V::and_int(integers, byte);
                            if CENTERED {
                                integer = V::add_int(integer, V::splat_int(-128));
                            }
                            (V::from_int(integer) * step).store(to);
                            integers = V::shift_right::<8>(integers);
                            to = to.add(LANES);
                        }
                    }
                }
                to = to.add(if CENTERED { 2 * half } else { half });
            }
        }
    }

    /// Loads scales of one byte, and multiplies them by the first of [`OF_FLOATS`]. Groups of
    /// `Nvfp4` have sixteen weights, and groups of `Mxfp4` have 32.
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
                (scales * V::splat(OF_FLOATS.0)).store(to.add(row * LANES));
            }
        }
    }
}
