//! Products of a few rows of x with w, which is stored as `[k, n]`. For a strip of columns at a
//! time, the kernel multiplies each row of w by an element of x, and adds the products to the sums
//! of the columns.
//!
//! Every output is one chain of fused multiply-adds in the order of k, as in `gemm`.

use std::ops::Range;

use super::super::element::Float;
use super::super::row_order::FEW_ROWS;
use super::super::simd::{F32x16, Kernel, LANES, prefetch_block};
use super::super::{Machine, Shared};
use super::epilogue::{self, Epilogue, OnLevel, Steps};
use super::gemm::Extents;
use super::gemv::with_floats;

/// The largest number of columns in a strip. The sums of a strip, 4 KB for each row of x, stay in
/// the L1 or L2 cache.
const STRIP: usize = 1024;
/// The number of rows of w whose products are added while a block of sums is in registers. These
/// rows are read as parallel streams.
const DEPTH: usize = 8;
/// The number of rows of x that share a load of w in registers.
const TOGETHER: usize = 4;

/// # Safety
/// `x` is `[m, k]` with `m <= FEW_ROWS`, `w` is `[k, n]`; the epilogue writes `[m, n]`.
pub unsafe fn columns<T: Float>(
    machine: Machine,
    extents: Extents,
    x: *const T,
    w: *const T,
    epilogue: &impl Epilogue,
) {
    let Extents { m, n, k } = extents;
    let (w, steps) = (Shared(w.cast_mut()), &OnLevel { level: machine.level, epilogue });
    // Make strips wide, so that few cache lines belong to two strips, but give each thread several
    // strips.
    let each = n.div_ceil(4 * machine.pool.threads()).next_multiple_of(4 * LANES);
    let strip = each.min(STRIP);
    let work = strip * k * size_of::<T>() / 2 * m.div_ceil(TOGETHER);
    let run = |x: *const f32| {
        let x = Shared(x.cast_mut());
        machine.pool.for_each(n.div_ceil(strip), work, &|strips| {
            let columns = strips.start * strip..n.min(strips.end * strip);
            let kernel = Columns { x: x.get(), w: w.get(), extents, columns, strip, steps };
            // SAFETY: the caller's contract; the strips are disjoint.
            unsafe { machine.level.run(kernel) }
        });
    };
    // SAFETY: x holds `m * k` elements.
    unsafe { with_floats(machine, x, m * k, &run) }
}

struct Columns<'a, T> {
    x: *const f32,
    w: *const T,
    extents: Extents,
    columns: Range<usize>,
    strip: usize,
    steps: &'a dyn Steps,
}

/// The sums of a strip's columns, for each row of x.
#[repr(align(64))]
struct Sums([[f32; STRIP]; FEW_ROWS]);

impl<T: Float> Kernel for Columns<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Extents { m, k, .. } = self.extents;
        let mut sums = std::mem::MaybeUninit::<Sums>::uninit();
        for first in self.columns.clone().step_by(self.strip) {
            let columns = first..self.columns.end.min(first + self.strip);
            // SAFETY: the rows and columns are readable, and the sums have room for a strip; they
            // are set before they are read.
            unsafe {
                let sums = (&raw mut (*sums.as_mut_ptr()).0).cast::<f32>();
                std::ptr::write_bytes(sums, 0, m * STRIP);
                let whole = if V::SMALL { 0 } else { k / DEPTH * DEPTH };
                for at in (0..whole).step_by(DEPTH) {
                    self.add::<V, DEPTH>(at, &columns, sums);
                }
                for at in whole..k {
                    self.add::<V, 1>(at, &columns, sums);
                }
                let (sums, pitch, row, rows) = (sums.cast_const(), STRIP, 0, m);
                let (column, columns) = (columns.start, columns.len());
                self.steps.finish(epilogue::Sums { sums, pitch, row, rows, column, columns });
            }
        }
    }
}

impl<T: Float> Columns<'_, T> {
    /// Adds the products of `DEPTH` rows of w, from row `at` on, to the sums. The last block of
    /// sums may extend beyond the columns.
    #[inline(always)]
    unsafe fn add<V: F32x16, const DEPTH: usize>(
        &self,
        at: usize,
        columns: &Range<usize>,
        sums: *mut f32,
    ) {
        let Extents { m, n, k } = self.extents;
        for column in columns.clone().step_by(LANES) {
            let count = LANES.min(columns.end - column);
            // SAFETY: every access is within the rows; the last block has `count` columns.
            unsafe {
                let mut weights = [V::splat(0.0); DEPTH];
                for (i, weights) in weights.iter_mut().enumerate() {
                    let w = self.w.add((at + i) * n + column);
                    prefetch_block(w.wrapping_add(DEPTH * n)); // no prefetcher follows such strides
                    *weights = T::load_block(w, count);
                }
                let sums = sums.add(column - columns.start);
                let x = self.x.add(at);
                let mut row = 0;
                while row < m {
                    let (x, sums) = (x.add(row * k), sums.add(row * STRIP));
                    row += match m - row {
                        rows if V::SMALL || rows == 1 => {
                            add_rows::<V, 1, DEPTH>(x, k, &weights, sums)
                        }
                        2 | 3 => add_rows::<V, 2, DEPTH>(x, k, &weights, sums),
                        _ => add_rows::<V, TOGETHER, DEPTH>(x, k, &weights, sums),
                    };
                }
            }
        }
    }
}

/// Computes `sums[row] += x[row][i] * weights[i]`, one `i` after another.
#[inline(always)]
unsafe fn add_rows<V: F32x16, const ROWS: usize, const DEPTH: usize>(
    x: *const f32,
    k: usize,
    weights: &[V; DEPTH],
    sums: *mut f32,
) -> usize {
    // SAFETY: the rows are readable.
    unsafe {
        let mut total = [V::splat(0.0); ROWS];
        for (r, total) in total.iter_mut().enumerate() {
            *total = V::load(sums.add(r * STRIP));
        }
        for (i, weights) in weights.iter().enumerate() {
            for (r, total) in total.iter_mut().enumerate() {
                *total = V::splat(*x.add(r * k + i)).mul_add(*weights, *total);
            }
        }
        for (r, total) in total.into_iter().enumerate() {
            total.store(sums.add(r * STRIP));
        }
    }
    ROWS
}
