//! Products of bytes.

use super::block::{Block, Part};
use super::words::BYTES;
use crate::quantized_matmul::operands::Operands;
use crate::simd::{F32x16, Kernel, LANES};

/// Adds the products of a part with all rows of the band to their sums.
///
/// # Safety
/// The contract of [`Block`]; the words and scales are written, and the machine has the features of
/// the vectors.
pub unsafe fn products<V: F32x16>(part: &Part) {
    // SAFETY: the caller's contract.
    unsafe { V::part(Bytes(part)) }
}

struct Bytes<'a>(&'a Part<'a>);

impl Kernel for Bytes<'_> {
    const BF16: bool = true;
    const ONLY_BF16: bool = Self::BF16;
    const BYTES: bool = true;
    const PAIRS: bool = true;
    const DOTS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Block { first, most, .. } = self.0.block;
        let step = if V::ADDS_PAIRS { *most } else { 4 };
        // SAFETY: the caller's contract.
        unsafe {
            match step.min(first.group / BYTES) {
                8 if const { V::ADDS_PAIRS } => self.tiles::<V, 8>(),
                2 if const { V::ADDS_PAIRS } => self.tiles::<V, 2>(),
                _ => self.tiles::<V, 4>(),
            }
        }
    }
}

impl Bytes<'_> {
    /// Adds the products with all rows of the band to their sums. A group has a multiple of `STEP`
    /// words, and 16-bit sums have room for the products of `STEP` words.
    ///
    /// # Safety
    /// The contract of [`products`].
    #[inline(always)]
    unsafe fn tiles<V: F32x16, const STEP: usize>(&self) {
        let (mut row, rows) = (0, self.0.block.band.len());
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
        let Block { first, band, to, .. } = self.0.block;
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
                x[r] = prepared.row::<f32>(m).add(self.0.groups.start * per_group);
                of_x[r] = prepared.sums(m).add(self.0.groups.start);
            }
            let mut words = self.0.words.cast_const();
            for index in 0..self.0.groups.len() {
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
                let scales = [self.0.scales::<V>(index), self.0.biases::<V>(index)];
                for r in 0..R {
                    let of_x = of_x[r].add(index);
                    let of_x = [V::splat(*of_x.add(padded)), V::splat(*of_x)];
                    sums[r] = added(total[r], scales, of_x, sums[r]);
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
pub fn added<V: F32x16>(total: V::Int, w: [V; 2], x: [V; 2], before: V) -> V {
    V::from_int(total).mul_add(w[0] * x[0], w[1].mul_add(x[1], before))
}
