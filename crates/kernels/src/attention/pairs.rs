//! Scores of bf16 queries with 4-bit keys, by an instruction that multiplies pairs of bf16. The
//! products are exact, because bf16 represents the codes exactly. Two vectors hold the sums of
//! thirty-two keys, one key in each lane, so no addition crosses lanes.

use super::coded::{Factors, GROUPS};
use super::source::Codes;
use super::{MAX_DIM, TILE};
use crate::element::Float;
use crate::simd::{F32x16, LANES, prefetch};

/// The number of keys that are processed at a time.
const KEYS: usize = 2 * LANES;
/// The number of 32-bit words of a key that fill half of a vector. Each word has eight features.
const WORDS: usize = LANES / 2;
/// The number of features in [`WORDS`] words.
const BLOCK: usize = 8 * WORDS;
/// The largest number of pairs in a query row.
pub const PAIRS: usize = MAX_DIM / 2;

/// Whether [`scores`] can be used. The CPU must have an instruction that multiplies pairs of bf16,
/// and `dim` must be a multiple of `BLOCK`. The queries must be bf16, so that products are exact.
pub const fn exact<V: F32x16, T: Float>(dim: usize) -> bool {
    V::DOTS_BF16 && T::IS_BF16 && dim.is_multiple_of(BLOCK)
}

/// Packs a query row into pairs of bf16. Of every eight features, the first is paired with the
/// fifth, the second with the sixth, and so on, because [`F32x16::nibble_pairs`] returns the codes
/// of keys in this order.
///
/// # Safety
/// `q` holds `dim` elements, `step` apart; `pairs` has room for half as many pairs.
#[inline(always)]
pub unsafe fn pair_query<T: Float>(q: *const T, step: isize, dim: usize, pairs: *mut u32) {
    for at in 0..dim / 2 {
        let feature = (at / 4 * 8 + at % 4) as isize;
        // SAFETY: the caller's contract.
        unsafe {
            let low = (*q.wrapping_offset(feature * step)).to_float().to_bits() >> 16;
            let high = (*q.wrapping_offset((feature + 4) * step)).to_float().to_bits();
            *pairs.add(at) = low | high & 0xffff_0000;
        }
    }
}

/// Computes the scores of `R` query rows, [`PAIRS`] apart, with `count` keys, and returns `R`.
/// `q_sums` holds the sum of each group of features, multiplied by `scale`. Also prefetches the
/// values, which the caller reads next.
///
/// # Safety
/// The keys, values and query rows are readable, `dim` is a multiple of [`BLOCK`], and the words of
/// a row are contiguous; `scores` has [`TILE`] floats per row.
#[inline(always)]
pub unsafe fn scores<V: F32x16, const R: usize>(
    ([k, v], factors): ([&Codes; 2], Factors),
    count: usize,
    dim: usize,
    (q, scale): (*const u32, f32),
    q_sums: *const f32,
    scores: *mut f32,
) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        for at in (0..count).step_by(KEYS) {
            let mut sums = [[V::splat(0.0); R]; 2];
            for first in (0..dim).step_by(BLOCK) {
                // The first eight vectors have the words of the first sixteen keys, and the last
                // eight vectors have the words of the other sixteen keys.
                let words = V::transpose(words::<V>(k, at, count, first));
                for row in at..count.min(at + KEYS) {
                    let value = v.packed.at(row).cast::<u8>();
                    prefetch(value.wrapping_add(first / 2), BLOCK / 2);
                }
                for word in 0..WORDS {
                    let feature = first + 8 * word;
                    let near = V::nibble_pairs(words[word].to_bits());
                    let far = V::nibble_pairs(words[WORDS + word].to_bits());
                    let [near_sums, far_sums] = &mut sums;
                    for n in 0..4 {
                        let both = near_sums.iter_mut().zip(far_sums.iter_mut());
                        for (r, (near_sum, far_sum)) in both.enumerate() {
                            let pair = V::splat_int(*q.add(r * PAIRS + feature / 2 + n) as i32);
                            *near_sum = near_sum.dot_bf16(near[n], pair);
                            *far_sum = far_sum.dot_bf16(far[n], pair);
                        }
                    }
                    if (feature + 8) % k.group != 0 {
                        continue;
                    }
                    let group = feature / k.group;
                    for (half, sums) in sums.iter_mut().enumerate() {
                        let at = at + half * LANES;
                        if at >= count {
                            continue;
                        }
                        let scales = V::load(factors.scales(group).add(at));
                        let biases = V::load(factors.biases(group).add(at));
                        let scales = scales * V::splat(scale);
                        for (r, sum) in sums.iter_mut().enumerate() {
                            let to = scores.add(r * TILE + at);
                            let shift = biases * V::splat(*q_sums.add(r * GROUPS + group));
                            let score = sum.mul_add(scales, shift);
                            if group == 0 {
                                score.store(to)
                            } else {
                                (V::load(to) + score).store(to)
                            }
                            *sum = V::splat(0.0);
                        }
                    }
                }
            }
        }
    }
    R
}

/// Loads a block of words of the thirty-two keys from `at` on. Vector `i` holds the words of the
/// keys `at + i` and `at + i + 16`.
///
/// # Safety
/// The contract of [`scores`] holds.
#[inline(always)]
unsafe fn words<V: F32x16>(k: &Codes, at: usize, count: usize, first: usize) -> [V; LANES] {
    let mut words = [V::splat(0.0); LANES];
    for (i, words) in words.iter_mut().enumerate() {
        // Past the last key, repeat the last key; the scores of the repetitions are not used.
        let near = k.packed.at((at + i).min(count - 1)).wrapping_add(first / 8);
        let far = k.packed.at((at + LANES + i).min(count - 1)).wrapping_add(first / 8);
        // SAFETY: the caller's contract.
        *words = unsafe { V::load_halves(near.cast(), far.cast()) };
    }
    words
}
