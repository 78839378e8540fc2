//! Multiplies sixteen rows of weights with a band of rows of x.

use std::ops::Range;

use super::super::operands::Operands;
use super::scales::{APART, OfGroups};
use super::words::{AHEAD, BYTES, PART, Rows};
use crate::simd::{F32x16, Kernel, LANES, Lines, prefetch_far};

/// The number of weights of a row that are transposed at once for few rows of x, so that the
/// processor multiplies one part while it waits for the weights of the next part. It is a multiple
/// of every group.
pub const FEW: usize = 128;

pub type Transpose = unsafe fn(&Rows, Range<usize>, *mut f32);
pub type Multiply = unsafe fn(&Part);

/// Multiplies `count` rows of weights, at most sixteen, with a band of rows of x.
pub struct Block<'a> {
    pub first: Operands<'a>,
    pub count: usize,
    pub band: Range<usize>,
    /// Sixteen sums for each row of the band.
    pub to: *mut f32,
    pub affine: bool,
    /// The factor by which a scale is multiplied to get the bias. It is 1 if biases are read.
    pub bias_factor: f32,
    /// Whether a word has the codes of every other weight, see
    /// [`splits_pairs`](super::words::splits_pairs).
    pub apart: bool,
    /// The number of words whose products 16-bit sums have room for.
    pub most: usize,
    /// The number of weights of a row in a part: [`FEW`] or [`PART`], or the weights of sixteen
    /// groups if codes are not transposed.
    pub part: usize,
    /// [`words`](super::words::words) for the format of the weights, or `None` if codes are not
    /// transposed.
    pub words: Option<Transpose>,
    /// Adds the products of a part to the sums of all rows of the band.
    pub products: Multiply,
}

impl Kernel for Block<'_> {
    const BF16: bool = true;
    const ONLY_BF16: bool = Self::BF16;
    const BYTES: bool = true;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Operands { axis, group, scale_bytes, .. } = self.first;
        let (mut words, mut scales) =
            (Lines::<{ PART / BYTES * LANES }>::uninit(), Lines::<{ 2 * LANES * LANES }>::uninit());
        let (words, scales) = (words.as_mut_ptr(), scales.as_mut_ptr());
        // SAFETY: the caller's contract; there is room for the words and scales of a part.
        unsafe {
            let rows = Rows::new(&self.first, self.count);
            let later = self.first.below(AHEAD).scales(None);
            let reads_biases = self.bias_factor == 1.0;
            self.to.write_bytes(0, self.band.len() * LANES);
            for start in (0..axis).step_by(LANES * group) {
                let end = axis.min(start + LANES * group);
                // Prefetch as many scales of later rows as are read here.
                let [ahead, length] =
                    [start, end - start].map(|weights| LANES * scale_bytes * weights / axis);
                prefetch_far(later.scales.wrapping_add(ahead), length);
                if reads_biases && later.biases != later.scales {
                    prefetch_far(later.biases.wrapping_add(ahead), length);
                }
                let Self { ref first, count, affine, .. } = self;
                let groups = start / group..end / group;
                V::part(OfGroups { first, count, affine, reads_biases, groups, to: scales });
                // Several rows of x use the biases, so they are computed only once here.
                if !reads_biases && self.words.is_some() {
                    for scales in (0..APART).step_by(LANES).map(|at| scales.wrapping_add(at)) {
                        let biases = V::load(scales) * V::splat(self.bias_factor);
                        biases.store(scales.add(APART));
                    }
                }
                for at in (start..end).step_by(self.part) {
                    let weights = at..end.min(at + self.part);
                    let groups = at / group..weights.end / group;
                    let scales = scales.add((at - start) / group * LANES);
                    if let Some(transpose) = self.words {
                        transpose(&rows, weights, words);
                    }
                    let block = &self;
                    (self.products)(&Part { block, rows: &rows, groups, words, scales });
                }
            }
        }
    }
}

/// A part of a block.
pub struct Part<'a> {
    pub block: &'a Block<'a>,
    pub rows: &'a Rows,
    pub groups: Range<usize>,
    /// The codes in the layout of [`words`](super::words::words), or room for [`PART`] weights of
    /// sixteen rows.
    pub words: *mut f32,
    /// The scales in the layout of [`OfGroups`].
    scales: *const f32,
}

impl Part<'_> {
    /// Returns the scales of sixteen rows for group `index` of the part.
    ///
    /// # Safety
    /// The part has the group.
    #[inline(always)]
    pub unsafe fn scales<V: F32x16>(&self, index: usize) -> V {
        // SAFETY: the caller's contract.
        unsafe { V::load(self.scales.add(index * LANES)) }
    }

    /// Returns the biases of sixteen rows for group `index` of the part.
    ///
    /// # Safety
    /// The part has the group. Codes are transposed, or biases are read.
    #[inline(always)]
    pub unsafe fn biases<V: F32x16>(&self, index: usize) -> V {
        // SAFETY: the caller's contract.
        unsafe { V::load(self.scales.add(APART + index * LANES)) }
    }
}
