//! Weights that are not quantized, and the steps after a product.

use std::ops::Range;

use super::super::Machine;
use super::super::activation::Activation;
use super::super::element::{Bf16, Float};
use super::super::simd::{F32x16, LANES, prefetch};
use super::arithmetic::{Arithmetic, InBf16, InF32};
use super::epilogue::Epilogue;
use super::interleaved::{Factor, Interleaved, interleaved, interleaved_across};
use super::weights::{Extents, Places, Weights};

/// Dense weights in memory, stored as `[n, k]`, or as `[k, n]` if `columns`.
pub struct Dense<T> {
    pub w: *const T,
    pub extents: Extents,
    pub columns: bool,
}

// SAFETY: the weights are only read.
unsafe impl<T> Sync for Dense<T> {}

impl<T: Float> Dense<T> {
    /// Implements [`Weights::unpack_across`] for weights that are stored as `[k, n]`.
    ///
    /// # Safety
    /// The contract of [`Weights::unpack_across`] holds.
    #[inline(always)]
    unsafe fn across<V: F32x16, A: Arithmetic>(
        &self,
        [row, rows]: [usize; 2],
        [k, len]: [usize; 2],
        places: Places,
    ) {
        let n = self.extents.n;
        for word in 0..len.div_ceil(A::PER_WORD) {
            let at = word * A::PER_WORD;
            let from = self.w.wrapping_add((k + at) * n + row);
            // Prefetch here, since no hardware prefetcher follows such strides.
            for at in 0..A::PER_WORD {
                let ahead = from.wrapping_add((AHEAD + at) * n);
                prefetch(ahead.cast(), rows * size_of::<T>());
            }
            for first in (0..rows).step_by(places.step) {
                let from = from.wrapping_add(first);
                let next = (at + 1 < len).then_some(from.wrapping_add(n));
                let count = LANES.min(n - row - first);
                // SAFETY: the caller's contract. The row may continue beyond the tile; lanes after
                // the tile are overwritten by the next word, which is stored after this one.
                unsafe {
                    let words = A::across::<V, T>(from, next, count);
                    words.store(places.of(first, word));
                }
            }
        }
    }
}

/// How many rows of memory (indices of k) ahead of its loads the kernel prefetches.
const AHEAD: usize = 16;

impl<T: Float> Weights<InF32> for Dense<T> {
    const DENSE: bool = true;

    #[inline(always)]
    unsafe fn unpack<V: F32x16>(
        &self,
        row: usize,
        rows: usize,
        k: usize,
        len: usize,
        out: *mut f32,
        stride: usize,
    ) {
        let depth = self.extents.k;
        // SAFETY: the caller ensures that the rows and elements are readable and `out` has room for
        // them.
        unsafe {
            for i in 0..rows {
                let (from, to) = (self.w.add((row + i) * depth + k), out.add(i * stride));
                let mut at = 0;
                while at + LANES <= len {
                    T::load::<V>(from.add(at)).store(to.add(at));
                    at += LANES;
                }
                if at < len {
                    T::load_first::<V>(from.add(at), len - at).store_first(to.add(at), len - at);
                }
            }
        }
    }

    fn lie_across(&self) -> bool {
        self.columns
    }

    #[inline(always)]
    unsafe fn unpack_across<V: F32x16>(
        &self,
        row: usize,
        rows: usize,
        k: usize,
        len: usize,
        places: Places,
    ) {
        // SAFETY: the caller's contract.
        unsafe { self.across::<V, InF32>([row, rows], [k, len], places) }
    }
}

impl Weights<InBf16> for Dense<Bf16> {
    const DENSE: bool = true;

    #[inline(always)]
    unsafe fn unpack<V: F32x16>(
        &self,
        row: usize,
        rows: usize,
        k: usize,
        len: usize,
        out: *mut u16,
        stride: usize,
    ) {
        let Extents { n, k: depth, .. } = self.extents;
        let w = self.w.cast::<u16>();
        // SAFETY: the caller ensures that the rows and elements are readable and `out` has room for
        // them.
        unsafe {
            if self.columns {
                // Each pair of rows of w makes a row of words, and then the words are transposed.
                for at in (0..len).step_by(2 * LANES) {
                    let count = (2 * LANES).min(len - at);
                    for i in (0..rows).step_by(LANES) {
                        let (row, rows) = (row + i, LANES.min(rows - i));
                        let wide = if row + LANES <= n { LANES } else { rows };
                        let first = w.wrapping_add((k + at) * n + row);
                        let mut square = [V::splat(0.0); LANES];
                        for (i, words) in square.iter_mut().enumerate().take(count.div_ceil(2)) {
                            let from = first.wrapping_add(2 * i * n);
                            let last = 2 * i + 1 == count;
                            let next = if last { from } else { from.wrapping_add(n) };
                            // Prefetch here, since no hardware prefetcher follows such strides.
                            prefetch(from.wrapping_add(2 * LANES * n).cast(), 2 * wide);
                            prefetch(next.wrapping_add(2 * LANES * n).cast(), 2 * wide);
                            let next = (!last).then_some(next.cast::<Bf16>());
                            *words = InBf16::across::<V, Bf16>(from.cast(), next, wide);
                        }
                        let square = V::transpose(square);
                        let out = out.add(i * stride + at);
                        for (i, words) in square.into_iter().enumerate().take(rows) {
                            let to = out.add(i * stride).cast();
                            match count.div_ceil(2) {
                                LANES => words.store(to),
                                words_left => words.store_first(to, words_left),
                            }
                        }
                    }
                }
                return;
            }
            let w = w.add(row * depth + k);
            let whole = len / (2 * LANES) * (2 * LANES);
            // Go through all rows at once, so that more loads from memory run at the same time.
            for at in (0..whole).step_by(2 * LANES) {
                for i in 0..rows {
                    let words = V::load(w.add(i * depth + at).cast());
                    words.store(out.add(i * stride + at).cast());
                }
            }
            for i in 0..if whole < len { rows } else { 0 } {
                let (from, to) = (w.add(i * depth + whole), out.add(i * stride + whole));
                std::ptr::copy_nonoverlapping(from, to, len - whole);
            }
        }
    }

    fn lie_across(&self) -> bool {
        self.columns
    }

    #[inline(always)]
    unsafe fn unpack_across<V: F32x16>(
        &self,
        row: usize,
        rows: usize,
        k: usize,
        len: usize,
        places: Places,
    ) {
        // SAFETY: the caller's contract.
        unsafe { self.across::<V, InBf16>([row, rows], [k, len], places) }
    }
}

impl<A: Arithmetic, T: Float> Factor<A> for Dense<T>
where
    Self: Weights<A>,
{
    unsafe fn interleaved(
        &self,
        machine: Machine,
        rows: Range<usize>,
        body: &dyn Fn(&Interleaved<A>),
    ) {
        let (first, extents) = (rows.start, [rows.len(), self.extents.k]);
        // SAFETY: the caller's contract.
        unsafe {
            if self.columns {
                interleaved_across(machine, extents, (self, first), body);
            } else {
                interleaved(machine, extents, self.w.wrapping_add(first * extents[1]), body);
            }
        }
    }
}

/// Rounds the sums, adds the bias, applies the activation, and adds the residual. Each step is
/// rounded to `T`.
pub struct Finish<T> {
    pub out: *mut T,
    pub columns: usize,
    pub bias: *const T,
    pub activation: Option<Activation>,
    pub residual: *const T,
}

// SAFETY: inputs are only read. One thread writes each output once, after it has read its residual.
unsafe impl<T> Sync for Finish<T> {}

impl<T: Float> Epilogue for Finish<T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn finish<V: F32x16>(&self, sums: V, row: usize, column: usize, count: usize) {
        let at = row * self.columns + column;
        let mut y: V = T::round(sums);
        // SAFETY: the outputs exist, and so do their bias and residuals if the pointers are not
        // null.
        unsafe {
            if !self.bias.is_null() {
                y = T::round(y + T::load_block(self.bias.add(column), count));
            }
            if let Some(activation) = self.activation {
                y = activation.apply::<V, T>(y);
            }
            if !self.residual.is_null() {
                y = T::round(y + T::load_block(self.residual.add(at), count));
            }
            if count == LANES {
                T::store(y, self.out.add(at));
            } else {
                T::store_first(y, self.out.add(at), count);
            }
        }
    }
}
