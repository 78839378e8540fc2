//! Adds up products of bytes in sums of sixteen bits, for CPUs without an instruction that adds
//! them up in lanes of 32 bits.

use super::super::{Call, Mode};
use super::rounded::Rounded;
use crate::linear::gemm::{Pass, STRIDE, WORDS};
use crate::simd::{F32x16, Kernel, LANES};

/// The number of words that are added up in sums of sixteen bits. Before these sums can
/// overflow, they are added to sums of 32 bits. A pair of bytes adds at most twice 127 times the
/// largest code.
pub(super) fn most_words(call: &Call) -> usize {
    match call.bits {
        2..=4 if call.mode != Mode::Mxfp4 => 8,
        // Codes are at most 24 (mxfp4) or 31 (5 bits).
        4 | 5 => 4,
        _ => 2,
    }
}

/// Does the work of [`Weights::add`](crate::linear::gemm::Weights::add) with sums of sixteen bits.
/// It is a separate function, so that the sums stay in registers.
pub(super) struct Pairs<'a, const ROWS: usize, const PANELS: usize> {
    pub x: &'a Rounded,
    /// The number of words in a group.
    pub per_group: usize,
    pub pass: Pass<PANELS>,
    pub tile: *const f32,
    pub sums: *mut f32,
    /// The result of [`most_words`].
    pub most: usize,
}

impl<const ROWS: usize, const PANELS: usize> Kernel for Pairs<'_, ROWS, PANELS> {
    const BF16: bool = true;
    const ONLY_BF16: bool = true;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { x: rounded, per_group, pass, tile, sums, most } = self;
        let Pass { x, panel, at, words } = pass;
        // SAFETY: as in `add`.
        unsafe {
            for group in 0..words / per_group {
                let mut total = [[V::splat_int(0); PANELS]; ROWS];
                for first in (group * per_group..(group + 1) * per_group).step_by(most) {
                    let mut pairs = [[V::splat_int(0); PANELS]; ROWS];
                    for at in first..first + most {
                        let mut lanes = [V::splat_int(0); PANELS];
                        for (lanes, x) in lanes.iter_mut().zip(x) {
                            *lanes = V::load(x.add(at * LANES)).to_bits();
                        }
                        for (r, pairs) in pairs.iter_mut().enumerate() {
                            let word = V::splat(*tile.add(r * STRIDE + at)).to_bits();
                            for (pairs, lanes) in pairs.iter_mut().zip(lanes) {
                                *pairs = V::add_pairs(*pairs, word, lanes);
                            }
                        }
                    }
                    for (total, pairs) in total.iter_mut().zip(pairs) {
                        for (total, pairs) in total.iter_mut().zip(pairs) {
                            *total = V::add_int(*total, V::sums_of_pairs(pairs));
                        }
                    }
                }
                let (index, scales) = (at / per_group + group, tile.add(WORDS + group));
                rounded.add_scaled::<V, ROWS, PANELS>(total, panel, index, scales, sums);
            }
        }
    }
}
