//! The softmax of the scores of one row.

use std::ops::Range;

use crate::element::Float;
use crate::math::raised_exponential;
use crate::output::Output;
use crate::simd::{F32x16, Kernel, LANES, prefetch_block};
use crate::softmax::scale_kept;

/// Turns the scores of a row into weights, and writes the weights.
pub struct Normalize<T> {
    pub out: Output<T>,
    /// The range of keys that the row sees, and the number of all keys.
    pub seen: Range<usize>,
    pub keys: usize,
    /// The scores of the keys that the row sees, and the largest score. Full blocks of scores have
    /// the order of [`Float::load_mixed`].
    pub kept: *mut f32,
    pub max: f32,
    /// The elements that the caller reads next. The kernel prefetches them.
    pub next: *const T,
}

impl<T: Float> Kernel for Normalize<T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { out, seen, keys, kept, mut max, next } = self;
        let hidden = keys - seen.len();
        if hidden > 0 {
            max = if T::LOWEST > max { T::LOWEST } else { max };
        }
        // SAFETY: the caller's contract; the keys lie within the row.
        unsafe {
            let visible = out.from(seen.start);
            let mut sum = exponentials::<V, T>(kept, seen.len(), V::splat(max), next);
            let lowest = one(raised_exponential::<V, T>(V::splat(T::LOWEST - max)));
            if hidden > 0 {
                sum += hidden as f32 * lowest;
            }
            let inverse = 1.0 / sum;
            // The value is not simply 0, since a NaN in the row makes the whole row NaN, as in MLX.
            let value = lowest * inverse;
            out.fill(V::splat(value), 0..seen.start);
            let (tail, mut end) = (seen.len() % LANES, seen.end);
            let whole = seen.len() - tail;
            if tail > 0 && seen.start.is_multiple_of(LANES) && end - tail + LANES <= keys {
                // Write a full block. Stores that bypass the caches are slow if they write only a
                // part of a cache line.
                scale_kept::<V, T>(kept, visible, whole, V::splat(inverse));
                let lanes = V::load_first(kept.add(whole), tail) * V::splat(inverse);
                visible.put(lanes.keep_first(tail, value), whole);
                end += LANES - tail;
            } else {
                scale_kept::<V, T>(kept, visible, seen.len(), V::splat(inverse));
            }
            out.fill(V::splat(value), end..keys);
        }
    }
}

/// The first lane as a number.
#[inline(always)]
fn one<V: F32x16>(lanes: V) -> f32 {
    let mut first = 0.0;
    // SAFETY: only one float is written.
    unsafe { lanes.store_first(&mut first, 1) };
    first
}

/// Replaces each score by the [`raised_exponential`] of `score - max`, and returns the sum of the
/// exponentials. Prefetches `next`.
///
/// # Safety
/// `kept` holds `count` floats.
#[inline(always)]
unsafe fn exponentials<V: F32x16, T: Float>(
    kept: *mut f32,
    count: usize,
    max: V,
    next: *const T,
) -> f32 {
    let mut sum = V::splat(0.0);
    let mut i = 0;
    // SAFETY: every access is within the floats.
    unsafe {
        while i + LANES <= count {
            prefetch_block(next.wrapping_add(i));
            let lanes = raised_exponential::<V, T>(V::load(kept.add(i)) - max);
            lanes.store(kept.add(i));
            sum = sum + lanes;
            i += LANES;
        }
        sum = T::ordered(sum);
        if i < count {
            let tail = count - i;
            let lanes = raised_exponential::<V, T>(V::load_first(kept.add(i), tail) - max);
            lanes.store_first(kept.add(i), tail);
            sum = sum + lanes.keep_first(tail, 0.0);
        }
    }
    sum.reduce_add()
}
