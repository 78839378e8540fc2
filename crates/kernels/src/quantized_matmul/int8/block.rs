//! Multiplies sixteen rows of weights with a band of rows of x.

use std::ops::Range;

use super::super::operands::Operands;
use super::words::{AHEAD, BYTES, OfGroups, PART, Rows};
use crate::simd::{F32x16, Kernel, LANES, Lines, prefetch_far};

/// The number of weights of a row that are transposed at once for few rows of x. It is a multiple
/// of every group.
const FEW: usize = 128;

/// Multiplies `count` rows of weights, at most sixteen, with a band of rows of x.
pub struct Block<'a> {
    pub first: Operands<'a>,
    pub count: usize,
    pub band: Range<usize>,
    /// Sixteen sums for each row of the band.
    pub to: *mut f32,
    pub affine: bool,
    /// The number of words whose products 16-bit sums have room for.
    pub most: usize,
    /// [`words`](super::words::words) for the format of the weights.
    pub words: unsafe fn(&Rows, Range<usize>, *mut f32),
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
        // A few rows take small parts, so that the processor multiplies one part while it waits for
        // the weights of the next part.
        let part = if self.band.len() < 8 { FEW } else { PART };
        let step = if V::ADDS_PAIRS { self.most } else { 8 };
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
                for at in (start..end).step_by(part) {
                    let weights = at..end.min(at + part);
                    let groups = at / group..weights.end / group;
                    let scales = scales.add((at - start) / group * LANES);
                    (self.words)(&rows, weights, words);
                    let part = Part { block: &self, groups, words, scales };
                    match step.min(group / BYTES) {
                        8 => part.tiles::<V, 8>(),
                        2 if const { V::ADDS_PAIRS } => part.tiles::<V, 2>(),
                        _ => part.tiles::<V, 4>(),
                    }
                }
            }
        }
    }
}

/// A part of a block.
struct Part<'a> {
    block: &'a Block<'a>,
    groups: Range<usize>,
    words: *const f32,
    scales: *const f32,
}

impl Part<'_> {
    /// Adds the products with all rows of the band to their sums. A group has a multiple of `STEP`
    /// words, and 16-bit sums have room for the products of `STEP` words.
    ///
    /// # Safety
    /// The contract of [`Block`]; the words and scales are written.
    #[inline(always)]
    unsafe fn tiles<V: F32x16, const STEP: usize>(&self) {
        let (mut row, rows) = (0, self.block.band.len());
        while row < rows {
            // SAFETY: the caller's contract.
            row += unsafe {
                match rows - row {
                    8.. if const { V::ONE_REGISTER } => self.tile::<V, 8, STEP>(row),
                    4.. => self.tile::<V, 4, STEP>(row),
                    2.. => self.tile::<V, 2, STEP>(row),
                    _ => self.tile::<V, 1, STEP>(row),
                }
            };
        }
    }

    /// Multiplies `R` rows of x, and returns `R`. `row` counts from the first row of the band.
    ///
    /// # Safety
    /// The contract of [`tiles`](Self::tiles).
    #[inline(always)]
    unsafe fn tile<V: F32x16, const R: usize, const STEP: usize>(&self, row: usize) -> usize {
        let Block { first, band, to, .. } = self.block;
        let Operands { axis, group, prepared, .. } = *first;
        let per_group = group / BYTES;
        let padded = (axis / group).next_multiple_of(LANES);
        let to = to.wrapping_add(row * LANES);
        // SAFETY: the caller's contract.
        unsafe {
            let mut sums = [V::splat(0.0); R];
            let (mut x, mut of_x) = ([std::ptr::null::<f32>(); R], [std::ptr::null::<f32>(); R]);
            for r in 0..R {
                let m = band.start + row + r;
                sums[r] = V::load(to.add(r * LANES));
                x[r] = prepared.row::<f32>(m).add(self.groups.start * per_group);
                of_x[r] = prepared.sums(m).add(self.groups.start);
            }
            let mut words = self.words;
            for index in 0..self.groups.len() {
                let mut total = [V::splat_int(0); R];
                for _ in 0..per_group / STEP {
                    let mut pairs = total;
                    if const { V::ADDS_PAIRS } {
                        pairs = [V::splat_int(0); R];
                    }
                    for word in 0..STEP {
                        let codes = V::load(words.add(word * LANES)).to_bits();
                        for (pairs, x) in pairs.iter_mut().zip(x) {
                            let x = V::splat(*x.add(word)).to_bits();
                            *pairs = V::add_pairs(*pairs, codes, x);
                        }
                    }
                    words = words.add(STEP * LANES);
                    for (x, (total, pairs)) in x.iter_mut().zip(total.iter_mut().zip(pairs)) {
                        *x = x.add(STEP);
                        *total = match V::ADDS_PAIRS {
                            true => V::add_int(*total, V::sums_of_pairs(pairs)),
                            false => pairs,
                        };
                    }
                }
                let scale = V::load(self.scales.add(index * LANES));
                let bias = V::load(self.scales.add((LANES + index) * LANES));
                for r in 0..R {
                    let of_x = of_x[r].add(index);
                    let of_x = [V::splat(*of_x.add(padded)), V::splat(*of_x)];
                    sums[r] = added(total[r], [scale, bias], of_x, sums[r]);
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                sums.store(to.add(r * LANES));
            }
        }
        R
    }
}

/// Scales the total of a group and adds it to `before`. `w` is the scale and the bias of the
/// weights, and `x` is the scale and the scaled sum of x.
#[inline(always)]
fn added<V: F32x16>(total: V::Int, w: [V; 2], x: [V; 2], before: V) -> V {
    V::from_int(total).mul_add(w[0] * x[0], w[1].mul_add(x[1], before))
}
