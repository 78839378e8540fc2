//! Computes logarithms of sums of exponentials over the last axis, and log-softmax from them, in
//! f32.
//!
//! A row is processed in chunks that fit the nearest cache, so its maximum and sum take only one
//! read from memory. Chunks are combined in order, so results do not depend on the number of
//! threads.

mod gradient;

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::math::{RAISE, add_raised_exponential};
use super::output::Output;
use super::simd::{F32x16, Kernel, LANES, prefetch_block};
use super::{Machine, Shared};

pub use gradient::{grad_on, logsumexp_grad};

/// The number of elements whose maximum and sum are computed at a time.
pub(super) const CHUNK: usize = 4096;
/// The number of elements in a partial sum.
const PARTIAL: usize = 1024;

/// The maximum and the sum of exponentials of a row or a part of it.
#[derive(Clone, Copy)]
pub(super) struct Stats {
    /// The largest element.
    pub max: f32,
    /// The sum of `exp(x - max)`, or of `exp(x - f32::MIN)` if `max` is -inf.
    pub sum: f32,
    /// The sum of the elements themselves, if requested with `TOTAL`.
    pub total: f32,
}

impl Stats {
    const EMPTY: Stats = Stats { max: f32::NEG_INFINITY, sum: 0.0, total: 0.0 };

    /// The number that is subtracted from each element in `sum`. It is finite even if the largest
    /// element is -inf, so that the sum is then NaN only if an element is NaN.
    fn base(&self) -> f32 {
        self.max.max(f32::MIN)
    }

    fn and(self, next: Stats) -> Stats {
        let all = Stats {
            max: if next.max > self.max { next.max } else { self.max },
            sum: 0.0,
            total: self.total + next.total,
        };
        let part = |part: Stats| {
            // If the bases are equal, the factor is exp(0) = 1. It is not computed, because
            // infinite bases would give inf - inf, which is NaN.
            let fall = part.base() - all.base();
            if part.base() == all.base() { part.sum } else { part.sum * fall.exp() }
        };
        Stats { sum: part(self) + part(next), ..all }
    }

    /// The logarithm of `sum`, which is the logsumexp minus the maximum.
    pub(super) fn log(&self) -> f32 {
        self.sum.ln()
    }

    pub(super) fn logsumexp(&self) -> f32 {
        let nothing = self.max == f32::NEG_INFINITY && self.sum == 0.0;
        if self.max == f32::INFINITY || nothing { self.max } else { self.log() + self.max }
    }
}

/// # Safety
/// `x` is readable for `count` elements.
#[inline(always)]
unsafe fn chunk_stats<V: F32x16, T: Float, const TOTAL: bool>(x: *const T, count: usize) -> Stats {
    let mut max = [V::splat(f32::NEG_INFINITY); 4];
    let mut total = [V::splat(0.0); 4];
    let mut i = 0;
    // SAFETY: every access is within the caller's elements.
    unsafe {
        while i + 4 * LANES <= count {
            for block in 0..4 {
                let lanes: V = T::load_mixed(x.add(i + block * LANES));
                max[block] = lanes.max(max[block]);
                if TOTAL {
                    total[block] = total[block] + lanes;
                }
            }
            i += 4 * LANES;
        }
        for (max, total) in max.iter_mut().zip(&mut total) {
            (*max, *total) = (T::ordered(*max), T::ordered(*total));
        }
        while i < count {
            let tail = (count - i).min(LANES);
            let lanes: V = T::load_first(x.add(i), tail);
            max[0] = lanes.keep_first(tail, f32::NEG_INFINITY).max(max[0]);
            if TOTAL {
                total[0] = total[0] + lanes;
            }
            i += LANES;
        }
        let max = max[0].max(max[1]).max(max[2].max(max[3])).reduce_max();
        let base = V::splat(max.max(f32::MIN));
        i = 0;
        let mut sum = V::splat(0.0);
        while i + LANES <= count {
            // A lane adds few terms to a partial sum, so that rounding errors stay small. With two
            // partial sums at a time, the constants would not all fit in AVX2's registers.
            let end = count.min(i + PARTIAL);
            let mut partial = V::splat(0.0);
            while i + LANES <= end {
                prefetch_block(x.wrapping_add(count + i)); // the next chunk
                let lanes: V = T::load_mixed(x.add(i));
                partial = add_raised_exponential::<V, T>(partial, lanes - base);
                i += LANES;
            }
            sum = sum + partial;
        }
        sum = T::ordered(sum);
        if i < count {
            let lanes = T::load_first::<V>(x.add(i), count - i) - base;
            let lanes = lanes.keep_first(count - i, f32::NEG_INFINITY);
            sum = add_raised_exponential::<V, T>(sum, lanes);
        }
        let sum = sum.reduce_add() / RAISE;
        let total = ((total[0] + total[1]) + (total[2] + total[3])).reduce_add();
        Stats { max, sum, total }
    }
}

/// # Safety
/// `x` is readable for `axis` elements.
#[inline(always)]
pub(super) unsafe fn row_stats<V: F32x16, T: Float, const TOTAL: bool>(
    x: *const T,
    axis: usize,
) -> Stats {
    let mut stats = Stats::EMPTY;
    let mut start = 0;
    while start < axis {
        let count = (axis - start).min(CHUNK);
        // SAFETY: the caller's contract.
        let chunk = unsafe { chunk_stats::<V, T, TOTAL>(x.add(start), count) };
        stats = if start == 0 { chunk } else { stats.and(chunk) };
        start += count;
    }
    stats
}

/// Numbers the chunks of all rows consecutively.
pub(super) struct Chunks {
    pub axis: usize,
    pub each: usize,
}

impl Chunks {
    pub(super) fn of(axis: usize) -> Self {
        Self { axis, each: axis.div_ceil(CHUNK) }
    }

    /// The row of a chunk and the columns that it covers.
    pub(super) fn place(&self, index: usize) -> (usize, Range<usize>) {
        let start = index % self.each * CHUNK;
        (index / self.each, start..self.axis.min(start + CHUNK))
    }
}

struct StatsOfChunks<T, const TOTAL: bool> {
    x: *const T,
    out: *mut Stats,
    axis: usize,
    range: Range<usize>,
}

impl<T: Float, const TOTAL: bool> Kernel for StatsOfChunks<T, TOTAL> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let chunks = Chunks::of(self.axis);
        for index in self.range {
            let (row, columns) = chunks.place(index);
            // SAFETY: the chunk is within the rows, and `out` has an entry for each chunk.
            unsafe {
                let x = self.x.add(row * self.axis + columns.start);
                self.out.add(index).write(chunk_stats::<V, T, TOTAL>(x, columns.len()));
            }
        }
    }
}

/// The time to process an element of a chunk, in tenths of a nanosecond.
const WORK: usize = 2;

/// Computes the stats of a few long rows by chunks, so that all threads take part. Returns `None`
/// if there are enough rows for the threads, or if the rows are short. The results equal the
/// results of [`row_stats`] bit for bit.
///
/// # Safety
/// `x` is readable for `rows * axis` elements.
pub(super) unsafe fn stats_of_few<T: Float, const TOTAL: bool>(
    machine: Machine,
    x: *const T,
    rows: usize,
    axis: usize,
) -> Option<Vec<Stats>> {
    let chunks = Chunks::of(axis);
    let few = rows < 2 * machine.pool.threads() && chunks.each > 1;
    if !few || machine.pool.ranges(rows * axis * WORK) == 1 {
        return None;
    }
    let mut parts = vec![Stats::EMPTY; rows * chunks.each];
    let (x, out) = (Shared(x.cast_mut()), Shared(parts.as_mut_ptr()));
    machine.pool.for_each(parts.len(), CHUNK * WORK, &|range| {
        let kernel = StatsOfChunks::<T, TOTAL> { x: x.get(), out: out.get(), axis, range };
        // SAFETY: the caller's contract; the ranges of chunks are disjoint.
        unsafe { machine.level.run(kernel) }
    });
    let combined = |row: &[Stats]| row[1..].iter().fold(row[0], |stats, next| stats.and(*next));
    Some(parts.chunks_exact(chunks.each).map(combined).collect())
}

/// Computes `log(sum(exp(x)))` of each row. If the maximum is infinite, the result is the maximum,
/// as in MLX.
///
/// # Safety
/// `x` holds `rows * axis` elements and `out` holds `rows`, aligned to the element.
pub unsafe fn logsumexp(element: Element, x: *const u8, out: *mut u8, rows: usize, axis: usize) {
    let machine = Machine::current();
    // SAFETY: the caller's contract; this CPU has the instruction set of `machine`.
    with_element!(element, T => unsafe {
        on::<T, false>(machine, x.cast(), out.cast(), rows, axis)
    })
}

/// Computes `x - logsumexp(x)` of each row. The logsumexp is rounded to the element type first, as
/// in MLX's composition of ops.
///
/// # Safety
/// `x` and `out` hold `rows * axis` elements, aligned to the element. `out` is `x` itself or
/// overlaps nothing.
pub unsafe fn log_softmax(element: Element, x: *const u8, out: *mut u8, rows: usize, axis: usize) {
    let machine = Machine::current();
    // SAFETY: the caller's contract; this CPU has the instruction set of `machine`.
    with_element!(element, T => unsafe {
        on::<T, true>(machine, x.cast(), out.cast(), rows, axis)
    })
}

/// Computes logsumexp, or log-softmax with `SUBTRACT`.
pub unsafe fn on<T: Float, const SUBTRACT: bool>(
    machine: Machine,
    x: *const T,
    out: *mut T,
    rows: usize,
    axis: usize,
) {
    if axis == 0 {
        return;
    }
    // SAFETY: the caller's contract.
    let stats = unsafe { stats_of_few::<T, false>(machine, x, rows, axis) };
    let stats = stats.as_deref();
    let out = Output::new(out, &[x], if SUBTRACT { rows * axis } else { rows }, axis);
    let x = Shared(x.cast_mut());
    let chunks = Chunks::of(axis);
    if let (true, Some(stats)) = (SUBTRACT, stats) {
        machine.pool.for_each(rows * chunks.each, CHUNK, &|range| {
            let kernel = Subtract { x: x.get(), out, stats, axis, range };
            // SAFETY: the caller's contract; the ranges of chunks are disjoint.
            unsafe { machine.level.run(kernel) }
        });
        return;
    }
    machine.pool.for_each(rows, (WORK + usize::from(SUBTRACT)) * axis, &|rows| {
        let kernel = Rows::<T, SUBTRACT> { x: x.get(), out, stats, axis, rows };
        // SAFETY: the caller's contract; the ranges of rows are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

struct Rows<'a, T, const SUBTRACT: bool> {
    x: *const T,
    out: Output<T>,
    stats: Option<&'a [Stats]>,
    axis: usize,
    rows: Range<usize>,
}

impl<T: Float, const SUBTRACT: bool> Kernel for Rows<'_, T, SUBTRACT> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for row in self.rows {
            // SAFETY: the row lies within both buffers.
            unsafe {
                let x = self.x.add(row * self.axis);
                let stats = match self.stats {
                    Some(stats) => stats[row],
                    None => row_stats::<V, T, false>(x, self.axis),
                };
                let log = V::splat(stats.logsumexp());
                if SUBTRACT {
                    let out = self.out.add(row * self.axis);
                    subtract::<V, T>(x, out, self.axis, T::round(log));
                } else {
                    self.out.put_first(log, row, 1);
                }
            }
        }
    }
}

struct Subtract<'a, T> {
    x: *const T,
    out: Output<T>,
    stats: &'a [Stats],
    axis: usize,
    range: Range<usize>,
}

impl<T: Float> Kernel for Subtract<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let chunks = Chunks::of(self.axis);
        for index in self.range {
            let (row, columns) = chunks.place(index);
            let first = row * self.axis + columns.start;
            let log = T::round(V::splat(self.stats[row].logsumexp()));
            // SAFETY: the chunk lies within both buffers.
            unsafe {
                subtract::<V, T>(self.x.add(first), self.out.add(first), columns.len(), log);
            }
        }
    }
}

/// # Safety
/// `x` and `out` hold `count` elements; `out` may be `x`.
#[inline(always)]
unsafe fn subtract<V: F32x16, T: Float>(x: *const T, out: Output<T>, count: usize, log: V) {
    let mut i = 0;
    // SAFETY: every access is within the elements, which are read before they are overwritten.
    unsafe {
        while i + LANES <= count {
            out.put_mixed(T::load_mixed::<V>(x.add(i)) - log, i);
            i += LANES;
        }
        if i < count {
            let tail = count - i;
            out.put_first(T::load_first::<V>(x.add(i), tail) - log, i, tail);
        }
    }
}
