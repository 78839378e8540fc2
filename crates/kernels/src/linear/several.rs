//! Products with several rows of x in the order `RowOrder::Tokens`: lanes run along a row. Up to
//! [`BAND`] rows of x form a band. Weights are read once and unpacked for all rows of a band, and
//! each output is summed in the same order as for a single row.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::element::Float;
use super::super::simd::{F32x16, Kernel, LANES, Lines, prefetch_far};
use super::super::{Machine, Shared};
use super::arithmetic::Arithmetic;
use super::epilogue::{Steps, Sums};
use super::gemm::Extents;
use super::together::{BAND, COLUMNS, PITCH, Together};
use super::workspace;

/// The number of independent sums of each dot product, which hide the latency of a multiply-add.
pub(super) const SUMS: usize = 4;
/// The number of blocks of a row of weights that are unpacked at a time.
const BLOCKS: usize = 64;
const _: () = assert!(BLOCKS.is_multiple_of(SUMS) && SUMS == 4);
/// An output has [`SUMS`] sums, which are this many floats apart. The first sums of all outputs are
/// stored first, then all second sums, and so on.
const EACH: usize = COLUMNS * PITCH;

/// # Safety
/// `x` is `[m, k]`, `w` is `[n, k]`; the steps write `[m, n]`. If factors are bf16, `T` and
/// `W` are bf16 too.
pub unsafe fn several<A: Arithmetic, T: Float, W: Float>(
    machine: Machine,
    extents: Extents,
    x: *const T,
    w: *const W,
    steps: &dyn Steps,
) {
    let Extents { m, n, k } = extents;
    let blocks = padded::<A>(k);
    let (x, w) = (Shared(x.cast_mut()), Shared(w.cast_mut()));
    workspace::with(m * blocks * LANES, &|banded| {
        let banded = Shared(banded);
        machine.pool.for_each(m, 2 * k, &|rows| {
            let (x, to) = (x.get().cast_const(), banded.get());
            // SAFETY: the caller's contract; `to` has room for each row, padded to full blocks.
            unsafe { machine.level.run(Lay::<A, T> { x, extents, rows, to, factors: PhantomData }) }
        });
        // At best, a core reads two bytes from memory in a tenth of a nanosecond. For every four
        // rows of x, the products with an element of w take as long as the read of this element.
        let work = LANES * k * size_of::<W>() / 2 * m.div_ceil(4);
        machine.pool.for_each(n.div_ceil(LANES), work, &|blocks| {
            let (x, w) = (banded.get().cast_const(), w.get().cast_const());
            let factors = PhantomData::<A>;
            // SAFETY: the caller's contract; the blocks' columns are disjoint.
            unsafe { machine.level.run(Several { x, w, extents, blocks, steps, factors }) }
        });
    });
}

/// The number of blocks in a row, rounded up so that each sum has the same number of blocks.
fn padded<A: Arithmetic>(k: usize) -> usize {
    k.div_ceil(LANES * A::PER_WORD).next_multiple_of(SUMS)
}

/// The position of a block within its row. Within each group of [`BLOCKS`] blocks, the blocks of
/// the first of the [`SUMS`] sums come first, then the blocks of the second sum, and so on.
#[inline(always)]
fn place(block: usize, blocks: usize) -> usize {
    let (first, within) = (block / BLOCKS * BLOCKS, block % BLOCKS);
    let steps = BLOCKS.min(blocks - first).div_ceil(SUMS);
    first + within % SUMS * steps + within / SUMS
}

/// Lays out rows of x in bands. Each row is split into blocks of sixteen 32-bit words (see
/// [`Arithmetic`]). The blocks that have the same position in the rows of a band are contiguous.
struct Lay<A, T> {
    x: *const T,
    extents: Extents,
    rows: Range<usize>,
    to: *mut f32,
    factors: PhantomData<A>,
}

impl<A: Arithmetic, T: Float> Kernel for Lay<A, T> {
    const BF16: bool = A::PAIRS;
    const ONLY_BF16: bool = A::PAIRS;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Extents { m, k, .. } = self.extents;
        let (chunk, blocks) = (LANES * A::PER_WORD, padded::<A>(k));
        for row in self.rows {
            let top = row / BAND * BAND;
            let apart = BAND.min(m - top) * LANES;
            // SAFETY: the caller's contract.
            unsafe {
                let to = self.to.add(top * blocks * LANES + (row - top) * LANES);
                for block in 0..k.div_ceil(chunk) {
                    let from = self.x.add(row * k + block * chunk);
                    let words: V = A::words(from, chunk.min(k - block * chunk));
                    words.store(to.add(place(block, blocks) * apart));
                }
            }
        }
    }
}

/// Computes blocks of sixteen columns of the output. Each block needs sixteen rows of w.
struct Several<'a, A, T> {
    /// x in the layout of [`Lay`].
    x: *const f32,
    w: *const T,
    extents: Extents,
    blocks: Range<usize>,
    steps: &'a dyn Steps,
    factors: PhantomData<A>,
}

impl<A: Arithmetic, T: Float> Kernel for Several<'_, A, T> {
    const BF16: bool = A::PAIRS;
    const ONLY_BF16: bool = A::PAIRS;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Extents { m, n, .. } = self.extents;
        let mut all = Lines::<{ LANES * PITCH }>::uninit();
        let all = all.as_mut_ptr();
        for block in self.blocks.clone() {
            let column = block * LANES;
            let count = LANES.min(n - column);
            for top in (0..m).step_by(BAND) {
                let rows = BAND.min(m - top);
                // SAFETY: the caller's contract; there is room for the sums of sixteen columns.
                unsafe {
                    for first in (0..count).step_by(COLUMNS) {
                        self.columns::<V>(column + first, (top, rows), all.add(first * PITCH));
                    }
                    let (sums, steps) = (all.cast_const(), self.steps);
                    V::part(Finish { sums, top, rows, column, count, steps });
                }
            }
        }
    }
}

impl<A: Arithmetic, T: Float> Several<'_, A, T> {
    /// Writes the sums of [`COLUMNS`] columns. If fewer columns are left, repeats the last one.
    #[inline(always)]
    unsafe fn columns<V: F32x16>(&self, column: usize, (top, rows): (usize, usize), to: *mut f32) {
        let k = self.extents.k;
        let blocks = k.div_ceil(LANES * A::PER_WORD);
        let mut unpacked = Lines::<{ BLOCKS * COLUMNS * LANES }>::uninit();
        let unpacked = unpacked.as_mut_ptr();
        let mut sums = Lines::<{ SUMS * EACH }>::uninit();
        let sums = sums.as_mut_ptr();
        // SAFETY: the caller's contract.
        unsafe {
            for column in 0..SUMS * COLUMNS {
                sums.add(column * PITCH).write_bytes(0, rows * LANES);
            }
            let x = self.x.add(top * padded::<A>(k) * LANES);
            for at in (0..blocks).step_by(BLOCKS) {
                let here = BLOCKS.min(blocks - at);
                let steps = here.div_ceil(SUMS);
                for c in 0..COLUMNS {
                    self.unpack::<V>(column + c, (at, here), unpacked.add(c * LANES));
                }
                for s in 0..SUMS.min(here) {
                    V::part(Together::<A> {
                        w: unpacked.add(s * steps * COLUMNS * LANES),
                        x: x.add((at + s * steps) * rows * LANES),
                        steps: (here - s).div_ceil(SUMS),
                        rows,
                        sums: sums.add(s * EACH),
                        arithmetic: PhantomData,
                    });
                }
            }
            for column in 0..COLUMNS {
                for at in (0..rows * LANES).step_by(LANES).map(|at| column * PITCH + at) {
                    let first = V::load(sums.add(at)) + V::load(sums.add(EACH + at));
                    let rest = V::load(sums.add(2 * EACH + at)) + V::load(sums.add(3 * EACH + at));
                    (first + rest).store(to.add(at));
                }
            }
        }
    }

    /// Unpacks the blocks `at..at + here` of a row of w to `to`, in the order of [`place`]. In
    /// `to` they are [`COLUMNS`] blocks apart, since the blocks of other rows of w lie between
    /// them. Also prefetches the elements that are unpacked next.
    #[inline(always)]
    unsafe fn unpack<V: F32x16>(&self, row: usize, (at, here): (usize, usize), to: *mut f32) {
        let Extents { n, k, .. } = self.extents;
        let chunk = LANES * A::PER_WORD;
        let (left, steps) = (k - at * chunk, here.div_ceil(SUMS));
        let (whole, apart) = (here.min(left / chunk) / SUMS, COLUMNS * LANES);
        // Prefetch the next elements of this row. At the end of the row, prefetch the elements of a
        // row that is unpacked soon.
        let ahead = if here * chunk < left { here * chunk } else { left + (COLUMNS - 1) * k };
        // SAFETY: the caller's contract.
        unsafe {
            let w = self.w.add(row.min(n - 1) * k + at * chunk);
            for step in 0..whole {
                let w = w.add(step * SUMS * chunk);
                prefetch_far(w.wrapping_add(ahead).cast(), SUMS * chunk * size_of::<T>());
                for s in 0..SUMS {
                    let words: V = A::whole(w.add(s * chunk));
                    words.store(to.add((s * steps + step) * apart));
                }
            }
            for block in whole * SUMS..here {
                let words: V = A::words(w.add(block * chunk), chunk.min(left - block * chunk));
                words.store(to.add(place(block, here) * apart));
            }
        }
    }
}

/// Adds up the lanes of the sums of a block of columns, and passes the results to the steps.
struct Finish<'a> {
    sums: *const f32,
    /// The first row.
    top: usize,
    rows: usize,
    column: usize,
    count: usize,
    steps: &'a dyn Steps,
}

impl Kernel for Finish<'_> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { sums, top, rows, column, count, steps } = self;
        let mut lines = [[0.0f32; LANES]; BAND];
        for (row, line) in lines.iter_mut().enumerate().take(rows) {
            // SAFETY: the sums of these columns are set.
            unsafe {
                let mut all = [V::splat(0.0); LANES];
                for (c, all) in all.iter_mut().enumerate().take(count) {
                    *all = V::load(sums.add(c * PITCH + row * LANES));
                }
                V::reduce_add_each(all).store(line.as_mut_ptr());
            }
        }
        let sums = lines.as_ptr().cast();
        // SAFETY: the outputs are writable.
        unsafe {
            let (pitch, row, columns) = (LANES, top, count);
            steps.finish(Sums { sums, pitch, row, rows, column, columns });
        }
    }
}
