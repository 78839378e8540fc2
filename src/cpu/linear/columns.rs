//! A few rows of x times w as `[k, n]`: rows of w are added up, a strip of columns at a time.
//!
//! Every output is one chain of fused multiply-adds in the order of k, as in `gemm`.

use std::ops::Range;

use super::super::element::Float;
use super::super::simd::{F32x16, Kernel, LANES, prefetch};
use super::super::{Machine, Shared};
use super::arithmetic::{Arithmetic, InF32};
use super::gemm::{Epilogue, Extents};
use super::gemv::with_floats;

/// Blocks of sixteen columns in a strip: two cache lines or more of each row of w.
const BLOCKS: usize = 4;
const STRIP: usize = BLOCKS * LANES;
/// Rows of x that share a load of w in registers.
const TOGETHER: usize = 4;
/// Rows of w ahead of the loads that memory is asked for: no prefetcher follows such strides.
const AHEAD: usize = 16;

/// # Safety
/// `x` is `[m, k]`, `w` is `[k, n]`; the epilogue takes `[m, n]`.
pub unsafe fn columns<T: Float>(
    machine: Machine,
    extents: Extents,
    x: *const T,
    w: *const T,
    epilogue: &impl Epilogue,
) {
    let w = Shared(w.cast_mut());
    let work = STRIP * extents.k * size_of::<T>() / 2 * extents.m.div_ceil(TOGETHER);
    let run = |x: *const f32| {
        let x = Shared(x.cast_mut());
        machine.pool.for_each(extents.n.div_ceil(STRIP), work, &|strips| {
            let kernel = Columns { x: x.get(), w: w.get(), extents, strips, epilogue };
            // SAFETY: the caller's contract; the strips are disjoint.
            unsafe { machine.level.run(kernel) }
        });
    };
    // SAFETY: x holds so many elements.
    unsafe { with_floats(machine, x, extents.m * extents.k, &run) }
}

struct Columns<'a, T, E> {
    x: *const f32,
    w: *const T,
    extents: Extents,
    strips: Range<usize>,
    epilogue: &'a E,
}

impl<T: Float, E: Epilogue> Kernel for Columns<'_, T, E> {
    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Extents { m, n, .. } = self.extents;
        for strip in self.strips.clone() {
            let column = strip * STRIP;
            let mut row = 0;
            while row < m {
                // SAFETY: the rows and columns exist; partial strips go block by block.
                unsafe {
                    if column + STRIP <= n {
                        row += match m - row {
                            1 => self.sums::<V, 1, BLOCKS>(row, column),
                            2 | 3 => self.sums::<V, 2, BLOCKS>(row, column),
                            _ => self.sums::<V, TOGETHER, BLOCKS>(row, column),
                        };
                    } else {
                        for column in (column..n).step_by(LANES) {
                            self.sums::<V, 1, 1>(row, column);
                        }
                        row += 1;
                    }
                }
            }
        }
    }
}

impl<T: Float, E: Epilogue> Columns<'_, T, E> {
    /// `ROWS` by `BLOCKS` blocks of outputs, the last of which may reach beyond the columns.
    #[inline(always)]
    unsafe fn sums<V: F32x16, const ROWS: usize, const BLOCKS: usize>(
        &self,
        row: usize,
        column: usize,
    ) -> usize {
        let Extents { n, k, .. } = self.extents;
        let last = LANES.min(n - column - (BLOCKS - 1) * LANES);
        let mut sums = [[V::splat(0.0); BLOCKS]; ROWS];
        // SAFETY: every access is within the rows, whose last block has `last` columns.
        unsafe {
            for at in 0..k {
                let w = self.w.add(at * n + column);
                let ahead = w.wrapping_add(AHEAD * n).cast::<u8>();
                prefetch(ahead, BLOCKS * LANES * size_of::<T>());
                let weights: [V; BLOCKS] = std::array::from_fn(|b| {
                    let count = if b + 1 == BLOCKS { last } else { LANES };
                    InF32::words::<V, T>(w.add(b * LANES), count)
                });
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = V::splat(*self.x.add((row + r) * k + at));
                    for (sum, weights) in sums.iter_mut().zip(weights) {
                        *sum = x.mul_add(weights, *sum);
                    }
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                for (b, sum) in sums.into_iter().enumerate() {
                    let count = if b + 1 == BLOCKS { last } else { LANES };
                    self.epilogue.finish(sum, row + r, column + b * LANES, count);
                }
            }
        }
        ROWS
    }
}
