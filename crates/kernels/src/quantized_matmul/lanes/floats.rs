//! Products of f32, or of pairs of bf16. Every output is one chain of multiply-adds in the order of
//! k, as in the GEMM of `linear`, and weights are decoded to the same numbers.

use std::marker::PhantomData;

use super::super::operands::Operands;
#[cfg(target_arch = "x86_64")]
use super::super::unpack::paired;
use super::block::{Block, FEW, Part};
use super::scales::OF_FLOATS;
use super::words::BYTES;
use crate::linear::arithmetic::Arithmetic;
use crate::simd::{F32x16, Kernel, LANES, Lines};

/// Adds the products of a part with all rows of the band to their sums.
///
/// # Safety
/// The contract of [`Block`]; the words and scales are written for at most [`FEW`] weights. Rows of
/// x are f32, or bf16 with `InBf16`, which the machine multiplies in pairs. The machine has the
/// features of the vectors.
pub unsafe fn products<V: F32x16, A: Arithmetic>(part: &Part) {
    // SAFETY: the caller's contract.
    unsafe { V::part(Products::<A>(part, PhantomData)) }
}

/// The number of codes in two words.
const CODES: usize = 2 * BYTES;

struct Products<'a, A>(&'a Part<'a>, PhantomData<A>);

impl<A: Arithmetic> Kernel for Products<'_, A> {
    const BF16: bool = true;
    const ONLY_BF16: bool = Self::BF16;
    const BYTES: bool = true;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Block { affine, band, .. } = self.0.block;
        let mut weights = Lines::<{ FEW * LANES }>::uninit();
        let weights = weights.as_mut_ptr();
        let (mut row, rows) = (0, band.len());
        // SAFETY: the caller's contract; there is room for `FEW` weights of sixteen rows.
        unsafe {
            match affine {
                true => self.decode::<V, true>(weights),
                false => self.decode::<V, false>(weights),
            }
            while row < rows {
                row += match rows - row {
                    8.. if const { V::ONE_REGISTER } => self.tile::<V, 8>(row, weights),
                    4.. => self.tile::<V, 4>(row, weights),
                    2.. => self.tile::<V, 2>(row, weights),
                    _ => self.tile::<V, 1>(row, weights),
                }
            }
        }
    }
}

impl<A: Arithmetic> Products<'_, A> {
    /// Writes the weights of sixteen rows in the order of k: a vector for each k, or with
    /// `InBf16` for each two.
    ///
    /// # Safety
    /// The contract of [`products`]; `to` has room for the weights.
    #[inline(always)]
    unsafe fn decode<V: F32x16, const AFFINE: bool>(&self, mut to: *mut f32) {
        let Part { block: Block { first, apart, .. }, ref groups, mut words, .. } = *self.0;
        for index in 0..groups.len() {
            // SAFETY: the caller's contract. A group has an even number of words.
            unsafe {
                let (scale, bias) = (self.0.scales::<V>(index), self.0.biases::<V>(index));
                for _ in 0..first.group / CODES {
                    let mut weights = [V::splat(0.0); CODES];
                    for (word, weights) in weights.chunks_exact_mut(BYTES).enumerate() {
                        let codes = V::load(words.add(word * LANES)).to_bits();
                        let byte = V::splat_int(0xff);
                        let codes = [
                            V::and_int(codes, byte),
                            V::and_int(V::shift_right::<8>(codes), byte),
                            V::and_int(V::shift_right::<16>(codes), byte),
                            V::shift_right::<24>(codes),
                        ];
                        for (weights, codes) in weights.iter_mut().zip(codes) {
                            let codes = V::from_int(codes);
                            *weights = match AFFINE {
                                true => codes.mul_add(scale, bias),
                                false => {
                                    (codes + V::splat(OF_FLOATS.1)).mul_add(scale, V::splat(0.0))
                                }
                            };
                        }
                    }
                    if *apart {
                        Self::store::<V>(weights, [0, 4, 1, 5, 2, 6, 3, 7], to);
                    } else {
                        Self::store::<V>(weights, [0, 1, 2, 3, 4, 5, 6, 7], to);
                    }
                    words = words.add(2 * LANES);
                    to = to.add(CODES / A::PER_WORD * LANES);
                }
            }
        }
    }

    /// Writes the weights of two words in the given order.
    ///
    /// # Safety
    /// The contract of [`products`]; `to` has room for the weights.
    #[inline(always)]
    unsafe fn store<V: F32x16>(weights: [V; CODES], order: [usize; CODES], to: *mut f32) {
        for (i, at) in order.chunks_exact(A::PER_WORD).enumerate() {
            // SAFETY: the caller's contract.
            unsafe {
                let to = to.add(i * LANES);
                #[cfg(target_arch = "x86_64")]
                if const { A::PAIRS && V::DOTS_BF16 } {
                    paired(weights[at[0]], weights[at[1]]).store(to);
                    continue;
                }
                weights[at[0]].store(to);
            }
        }
    }

    /// Multiplies `R` rows of x, and returns `R`. `row` counts from the first row of the band.
    ///
    /// # Safety
    /// The contract of [`products`]; the weights are written.
    #[inline(always)]
    unsafe fn tile<V: F32x16, const R: usize>(&self, row: usize, weights: *const f32) -> usize {
        let Part { block: Block { first, band, to, .. }, ref groups, .. } = *self.0;
        let Operands { group, prepared, .. } = *first;
        let to = to.wrapping_add(row * LANES);
        // SAFETY: the caller's contract.
        unsafe {
            let mut sums = [V::splat(0.0); R];
            let mut x = [std::ptr::null::<f32>(); R];
            for r in 0..R {
                sums[r] = V::load(to.add(r * LANES));
                let x_row = prepared.row::<f32>(band.start + row + r);
                x[r] = x_row.add(groups.start * group / A::PER_WORD);
            }
            for word in 0..groups.len() * group / A::PER_WORD {
                let weights = V::load(weights.add(word * LANES));
                for (sums, x) in sums.iter_mut().zip(x) {
                    let x = V::splat(x.add(word).read_unaligned());
                    *sums = A::step(*sums, x, weights);
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                sums.store(to.add(r * LANES));
            }
        }
        R
    }
}
