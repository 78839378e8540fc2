//! Reduces a row to one number. The blocks of the row are added to four accumulators ("chains"),
//! and the chains are merged in a tree. The order of the additions is the same for every
//! instruction set.

use super::element::Float;
use super::simd::{F32x16, LANES, prefetch};

/// The kernel prefetches this many bytes ahead of its loads.
const AHEAD: usize = 4096;

/// A reduction of the blocks of a row. The methods are inlined into the kernel's loop.
pub trait Fold: Copy {
    /// The initial value of each lane. Lanes past the end of the row have the value `PAD`.
    const START: f32;
    const PAD: f32;
    fn step<V: F32x16>(self, so_far: V, lanes: V) -> V;
    fn merge<V: F32x16>(self, a: V, b: V) -> V;
    fn finish<V: F32x16>(self, lanes: V) -> f32;
}

#[derive(Clone, Copy)]
pub struct Sum;

impl Fold for Sum {
    const START: f32 = 0.0;
    const PAD: f32 = 0.0;
    #[inline(always)]
    fn step<V: F32x16>(self, so_far: V, lanes: V) -> V {
        so_far + lanes
    }
    #[inline(always)]
    fn merge<V: F32x16>(self, a: V, b: V) -> V {
        a + b
    }
    #[inline(always)]
    fn finish<V: F32x16>(self, lanes: V) -> f32 {
        lanes.reduce_add()
    }
}

/// The sum of squares.
#[derive(Clone, Copy)]
pub struct Squares;

impl Fold for Squares {
    const START: f32 = 0.0;
    const PAD: f32 = 0.0;
    #[inline(always)]
    fn step<V: F32x16>(self, so_far: V, lanes: V) -> V {
        so_far + lanes * lanes
    }
    #[inline(always)]
    fn merge<V: F32x16>(self, a: V, b: V) -> V {
        a + b
    }
    #[inline(always)]
    fn finish<V: F32x16>(self, lanes: V) -> f32 {
        lanes.reduce_add()
    }
}

/// The largest element; NaN if any element is NaN, as in MLX.
#[derive(Clone, Copy)]
pub struct Max;

impl Fold for Max {
    const START: f32 = f32::NEG_INFINITY;
    const PAD: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    fn step<V: F32x16>(self, so_far: V, lanes: V) -> V {
        // `max` keeps a NaN of `so_far`, but may drop a NaN of `lanes`.
        V::select(lanes.is_nan(), lanes, lanes.max(so_far))
    }
    #[inline(always)]
    fn merge<V: F32x16>(self, a: V, b: V) -> V {
        self.step(a, b)
    }
    #[inline(always)]
    fn finish<V: F32x16>(self, lanes: V) -> f32 {
        let nans = V::select(lanes.is_nan(), V::splat(1.0), V::splat(0.0));
        if nans.any_above(0.0) { f32::NAN } else { lanes.reduce_max() }
    }
}

/// Folds the `axis` elements of a row.
///
/// # Safety
/// `x` is readable for `axis` elements.
#[inline(always)]
pub unsafe fn fold_row<V: F32x16, T: Float, F: Fold>(fold: F, x: *const T, axis: usize) -> f32 {
    // Four chains hide the latency of additions.
    let mut chains = [V::splat(F::START); 4];
    let mut i = 0;
    // SAFETY: every access is within the row.
    unsafe {
        while i + 4 * LANES <= axis {
            prefetch(
                x.wrapping_add(i).cast::<u8>().wrapping_add(AHEAD),
                4 * LANES * size_of::<T>(),
            );
            for (block, chain) in chains.iter_mut().enumerate() {
                *chain = fold.step(*chain, T::load_mixed::<V>(x.add(i + block * LANES)));
            }
            i += 4 * LANES;
        }
        while i + LANES <= axis {
            chains[0] = fold.step(chains[0], T::load_mixed::<V>(x.add(i)));
            i += LANES;
        }
        for chain in &mut chains {
            *chain = T::ordered(*chain);
        }
        if i < axis {
            let lanes: V = T::load_first(x.add(i), axis - i);
            chains[1] = fold.step(chains[1], lanes.keep_first(axis - i, F::PAD));
        }
    }
    let [a, b, c, d] = chains;
    fold.finish(fold.merge(fold.merge(a, b), fold.merge(c, d)))
}
