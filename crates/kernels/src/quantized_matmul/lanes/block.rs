//! Multiplies sixteen rows of weights with a band of rows of x.

use std::ops::Range;

use super::super::operands::Operands;
use super::words::{AHEAD, BYTES, OfGroups, PART, Rows};
use crate::simd::{F32x16, Kernel, LANES, Lines, prefetch_far};

/// The number of weights of a row that are transposed at once for few rows of x, so that the
/// processor multiplies one part while it waits for the weights of the next part. It is a multiple
/// of every group.
pub const FEW: usize = 128;

/// Multiplies `count` rows of weights, at most sixteen, with a band of rows of x.
pub struct Block<'a> {
    pub first: Operands<'a>,
    pub count: usize,
    pub band: Range<usize>,
    /// Sixteen sums for each row of the band.
    pub to: *mut f32,
    pub affine: bool,
    /// Whether a word has the codes of every other weight, see
    /// [`splits_pairs`](super::words::splits_pairs).
    pub apart: bool,
    /// The number of words whose products 16-bit sums have room for.
    pub most: usize,
    /// The number of weights of a row that are transposed at once: [`FEW`] or [`PART`].
    pub part: usize,
    /// [`words`](super::words::words) for the format of the weights.
    pub words: unsafe fn(&Rows, Range<usize>, *mut f32),
    /// Adds the products of a part to the sums of all rows of the band.
    pub products: unsafe fn(&Part),
}

impl Kernel for Block<'_> {
    const BF16: bool = true;
    const ONLY_BF16: bool = Self::BF16;
    const BYTES: bool = true;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Operands { axis, group, scale_bytes, next, .. } = self.first;
        let (mut words, mut scales) =
            (Lines::<{ PART / BYTES * LANES }>::uninit(), Lines::<{ 2 * LANES * LANES }>::uninit());
        let (words, scales) = (words.as_mut_ptr(), scales.as_mut_ptr());
        // SAFETY: the caller's contract; there is room for the words and scales of a part.
        unsafe {
            prefetch_far(next.0, self.count * next.1);
            let rows = Rows::new(&self.first, self.count);
            let later = self.first.below(AHEAD).scales(None);
            self.to.write_bytes(0, self.band.len() * LANES);
            for start in (0..axis).step_by(LANES * group) {
                let end = axis.min(start + LANES * group);
                // Prefetch as many scales of later rows as are read here.
                let [ahead, length] =
                    [start, end - start].map(|weights| LANES * scale_bytes * weights / axis);
                prefetch_far(later.scales.wrapping_add(ahead), length);
                if later.biases != later.scales {
                    prefetch_far(later.biases.wrapping_add(ahead), length);
                }
                let Self { ref first, count, affine, .. } = self;
                let groups = start / group..end / group;
                V::part(OfGroups { first, count, affine, groups, to: scales });
                for at in (start..end).step_by(self.part) {
                    let weights = at..end.min(at + self.part);
                    let groups = at / group..weights.end / group;
                    let scales = scales.add((at - start) / group * LANES);
                    (self.words)(&rows, weights, words);
                    (self.products)(&Part { block: &self, groups, words, scales });
                }
            }
        }
    }
}

/// A part of a block. The words are in the layout of [`words`](super::words::words). The scales of
/// a group are a vector, and its biases are the vector [`LANES`] vectors later.
pub struct Part<'a> {
    pub block: &'a Block<'a>,
    pub groups: Range<usize>,
    pub words: *const f32,
    pub scales: *const f32,
}
