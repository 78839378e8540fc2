//! Scores and weighted sums of keys and values that are stored as rows of elements.

use super::TILE;
use super::source::Rows;
use crate::element::Float;
use crate::simd::{F32x16, LANES, prefetch_far};

/// Computes the scores of `R` rows with `count` keys, and returns `R`. Each step takes `K` keys, so
/// that it has `R * K` = 16 sums. The function also prefetches the values, which the caller reads
/// next.
#[inline(always)]
pub unsafe fn scores<V: F32x16, E: Float, const R: usize, const K: usize>(
    k: &Rows<E>,
    v: &Rows<E>,
    count: usize,
    dim: usize,
    q: *const f32,
    pitch: usize,
    scores: *mut f32,
) -> usize {
    let bytes = dim * size_of::<E>();
    for at in (0..count).step_by(K) {
        // Past the last key, repeat the last key; the scores of the repetitions are not used.
        let mut keys = [k.data; K];
        for (i, key) in keys.iter_mut().enumerate() {
            *key = k.at((at + i).min(count - 1));
        }
        for i in at..count.min(at + K) {
            prefetch_far(v.at(i).cast(), bytes);
        }
        let mut sums = [V::splat(0.0); LANES];
        let mut from = 0;
        // SAFETY: the caller's contract; the last block loads only the features that the row has.
        unsafe {
            while from + LANES <= dim {
                for i in 0..K {
                    let key: V = E::load(keys[i].add(from));
                    for r in 0..R {
                        let sum = &mut sums[r * K + i];
                        *sum = V::load(q.add(r * pitch + from)).mul_add(key, *sum);
                    }
                }
                from += LANES;
            }
            if from < dim {
                for i in 0..K {
                    let key: V = E::load_first(keys[i].add(from), dim - from);
                    for r in 0..R {
                        let sum = &mut sums[r * K + i];
                        *sum = V::load(q.add(r * pitch + from)).mul_add(key, *sum);
                    }
                }
            }
            let mut all = [0.0f32; LANES];
            V::reduce_add_each(sums).store(all.as_mut_ptr());
            for r in 0..R {
                // `TILE` is a multiple of `K`.
                std::ptr::copy_nonoverlapping(
                    all.as_ptr().add(r * K),
                    scores.add(r * TILE + at),
                    K,
                );
            }
        }
    }
    R
}

/// Adds `count` weighted values to the outputs of `R` rows, and returns `R`. Also prefetches
/// `count` keys of `next`, which the caller reads next.
#[inline(always)]
pub unsafe fn add_values<V: F32x16, E: Float, const R: usize>(
    next: &Rows<E>,
    v: &Rows<E>,
    count: usize,
    dim: usize,
    p: *const f32,
    out: *mut f32,
    pitch: usize,
) -> usize {
    let mut from = 0;
    // SAFETY: the caller's contract.
    unsafe {
        while from + 4 * LANES <= dim {
            add_columns::<V, E, R, 4, false>(next, v, count, p, out, pitch, (from, 0));
            from += 4 * LANES;
        }
        while from + LANES <= dim {
            add_columns::<V, E, R, 1, false>(next, v, count, p, out, pitch, (from, 0));
            from += LANES;
        }
        if from < dim {
            add_columns::<V, E, R, 1, true>(next, v, count, p, out, pitch, (from, dim - from));
        }
    }
    R
}

/// Does the work of `add_values` for `N` blocks of features, or, with `PART`, for the first `part`
/// features of a block.
#[inline(always)]
unsafe fn add_columns<V: F32x16, E: Float, const R: usize, const N: usize, const PART: bool>(
    next: &Rows<E>,
    v: &Rows<E>,
    count: usize,
    p: *const f32,
    out: *mut f32,
    pitch: usize,
    (from, part): (usize, usize),
) {
    // SAFETY: the caller's contract.
    unsafe {
        let at = |r: usize, n: usize| out.add(r * pitch + from + n * LANES);
        let mut sums = [[V::splat(0.0); N]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = V::load(at(r, n));
            }
        }
        for key in 0..count {
            let key_after = next.at(key).wrapping_add(from);
            prefetch_far(key_after.cast(), N * LANES * size_of::<E>());
            let row = v.at(key).add(from);
            let mut values = [V::splat(0.0); N];
            for (n, value) in values.iter_mut().enumerate() {
                let at = row.add(n * LANES);
                *value = if PART { E::load_first(at, part) } else { E::load(at) };
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let weight = V::splat(*p.add(r * TILE + key));
                for (sum, value) in sums.iter_mut().zip(&values) {
                    *sum = value.mul_add(weight, *sum);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (n, sum) in sums.into_iter().enumerate() {
                sum.store(at(r, n));
            }
        }
    }
}
