//! Products with a few rows of x in the order `RowOrder::Tokens`: lanes run along a row. The kernel
//! reads each row of w once, in order, and computes its dot products with up to four rows of x. For
//! more rows of x, `several.rs` unpacks w.
//!
//! Every output is summed in the same order for any number of rows, so a token's result does not
//! depend on the other tokens in its batch.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::element::Float;
use super::super::simd::{F32x16, Kernel, LANES, prefetch_far};
use super::super::{Machine, Shared};
use super::arithmetic::{Arithmetic, InBf16, InF32};
use super::epilogue::{Epilogue, OnLevel, Steps, Sums};
use super::gemm::Extents;
use super::several::{SUMS, several};
use super::workspace;

/// The kernel prefetches, because one sequential stream alone does not use the full bandwidth: this
/// many bytes ahead of its loads, times the number of rows of w that it reads at a time.
const AHEAD: usize = 4096;
/// The distance with AVX2. On Zen 3, decoding in f16 was 1.25 times as fast with it as with 4096
/// bytes, and 1.1 times as fast as without prefetches.
const NEAR: usize = 1024;
/// The largest number of rows of x that share a load of w in registers.
const TOGETHER: usize = 4;
/// The number of rows of w that are read at a time on instruction sets where this is faster. On a
/// Xeon with AMX, four rows raised the speed of decoding in bf16 by 6 % (median of 13 pairs of
/// runs). Zen 4 lost 8 to 14 %.
const STREAMS: usize = 4;
/// The largest number of columns whose sums are finished at a time.
const WIDE: usize = 8 * LANES;

/// # Safety
/// `x` is `[m, k]`, `w` is `[n, k]`; the epilogue writes `[m, n]`. If the types differ, x is f32.
pub unsafe fn gemv<T: Float, W: Float>(
    machine: Machine,
    extents: Extents,
    x: *const T,
    w: *const W,
    epilogue: &impl Epilogue,
) {
    // SAFETY: the caller's contract.
    unsafe { gemv_with(machine, extents, x, w, &OnLevel { level: machine.level, epilogue }) }
}

unsafe fn gemv_with<T: Float, W: Float>(
    machine: Machine,
    extents: Extents,
    x: *const T,
    w: *const W,
    steps: &dyn Steps,
) {
    // SAFETY: the caller's contract; x holds `m * k` elements.
    unsafe {
        if const { T::IS_BF16 } && machine.level.dots_bf16() {
            return gemv_in::<InBf16, T, W>(machine, extents, x, w, steps);
        }
        with_floats(machine, x, extents.m * extents.k, &|x| {
            gemv_in::<InF32, f32, W>(machine, extents, x, w, steps);
        });
    }
}

unsafe fn gemv_in<A: Arithmetic, X: Float, W: Float>(
    machine: Machine,
    extents: Extents,
    x: *const X,
    w: *const W,
    steps: &dyn Steps,
) {
    let Extents { m, n, k } = extents;
    if m > TOGETHER {
        // SAFETY: the caller's contract.
        return unsafe { several::<A, X, W>(machine, extents, x, w, steps) };
    }
    let (x, w) = (Shared(x.cast_mut()), Shared(w.cast_mut()));
    let streams = A::PAIRS && machine.level.multiplies_tiles();
    // At best, a core reads two bytes from memory in a tenth of a nanosecond.
    let work = k * size_of::<W>() / 2;
    machine.pool.for_each(n.div_ceil(LANES), LANES * work, &|blocks| {
        let (x, w, arithmetic) = (x.get(), w.get(), PhantomData::<A>);
        // SAFETY: the caller's contract; the blocks' columns are disjoint.
        unsafe { machine.level.run(Gemv { x, w, extents, blocks, steps, streams, arithmetic }) };
    });
}

/// Calls `body` with x as floats, which are x itself or a converted copy.
///
/// # Safety
/// `x` holds `count` elements.
pub unsafe fn with_floats<T: Float>(
    machine: Machine,
    x: *const T,
    count: usize,
    body: &dyn Fn(*const f32),
) {
    if let Some(floats) = T::as_f32(x) {
        return body(floats);
    }
    workspace::with(count, &|floats| {
        // SAFETY: the workspace has room for `count` floats.
        unsafe { machine.level.run(Convert { from: x, to: floats, count }) };
        body(floats);
    });
}

struct Convert<T> {
    from: *const T,
    to: *mut f32,
    count: usize,
}

impl<T: Float> Kernel for Convert<T> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for at in (0..self.count).step_by(LANES) {
            let count = LANES.min(self.count - at);
            // SAFETY: both buffers hold `count` more elements at `at`.
            unsafe {
                T::load_block::<V>(self.from.add(at), count).store_first(self.to.add(at), count);
            }
        }
    }
}

/// Computes blocks of sixteen columns of the output. Each block needs sixteen rows of w.
struct Gemv<'a, X, T, A> {
    x: *const X,
    w: *const T,
    extents: Extents,
    blocks: Range<usize>,
    steps: &'a dyn Steps,
    /// Whether several rows of w are read at a time if x is one row of pairs.
    streams: bool,
    arithmetic: PhantomData<A>,
}

impl<X: Float, T: Float, A: Arithmetic> Kernel for Gemv<'_, X, T, A> {
    const BF16: bool = A::PAIRS;
    const ONLY_BF16: bool = Self::BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let n = self.extents.n;
        let (mut sums, m) = ([[0.0f32; WIDE]; TOGETHER], self.extents.m);
        let Range { start, end } = self.blocks;
        for first in (start * LANES..n.min(end * LANES)).step_by(WIDE) {
            let columns = WIDE.min(n.min(end * LANES) - first);
            // SAFETY: the caller's contract.
            unsafe {
                for at in (0..columns).step_by(LANES) {
                    self.columns::<V>(first, at..columns.min(at + LANES), &mut sums);
                }
                let (sums, pitch, row, rows, column) = (sums.as_ptr().cast(), WIDE, 0, m, first);
                self.steps.finish(Sums { sums, pitch, row, rows, column, columns });
            }
        }
    }
}

impl<X: Float, T: Float, A: Arithmetic> Gemv<'_, X, T, A> {
    /// Computes at most sixteen columns. Their indices count from the column `from`.
    #[inline(always)]
    unsafe fn columns<V: F32x16>(
        &self,
        from: usize,
        columns: Range<usize>,
        sums: &mut [[f32; WIDE]; TOGETHER],
    ) {
        let Extents { m, k, .. } = self.extents;
        let w = self.w.wrapping_add(from * k);
        let Range { start: mut first, end } = columns;
        if A::PAIRS && self.streams && m == 1 {
            while first + STREAMS <= end {
                // SAFETY: these rows of w and the row of x are readable.
                unsafe {
                    dots::<V, X, T, A, 1, STREAMS>(self.x, w.add(first * k), k, sums, first);
                }
                first += STREAMS;
            }
        }
        for i in first..end {
            // SAFETY: the row of w and the rows of x are readable.
            unsafe {
                let w = w.add(i * k);
                let mut row = 0;
                while row < m {
                    let (x, to) = (self.x.add(row * k), &mut sums[row..]);
                    row += match m - row {
                        4.. if V::ONE_REGISTER => dots::<V, X, T, A, 4, 1>(x, w, k, to, i),
                        2.. if !V::SMALL => dots::<V, X, T, A, 2, 1>(x, w, k, to, i),
                        _ => dots::<V, X, T, A, 1, 1>(x, w, k, to, i),
                    };
                }
            }
        }
    }
}

/// Computes the dot products of `W_ROWS` rows of w with `ROWS` rows of x. Writes the results for
/// each row of x to the corresponding row of `to`, from index `i` on.
#[inline(always)]
unsafe fn dots<
    V: F32x16,
    X: Float,
    T: Float,
    A: Arithmetic,
    const ROWS: usize,
    const W_ROWS: usize,
>(
    x: *const X,
    w: *const T,
    k: usize,
    to: &mut [[f32; WIDE]],
    i: usize,
) -> usize {
    let chunk = LANES * A::PER_WORD;
    let mut sums = [[[V::splat(0.0); SUMS]; ROWS]; W_ROWS];
    let mut at = 0;
    // SAFETY: every access is within the rows.
    unsafe {
        while at + SUMS * chunk <= k {
            for stream in 0..W_ROWS {
                let distance = W_ROWS * if V::ONE_REGISTER { AHEAD } else { NEAR };
                let ahead = w.add(stream * k + at).cast::<u8>().wrapping_add(distance);
                prefetch_far(ahead, SUMS * chunk * size_of::<T>());
            }
            for s in 0..SUMS {
                let here = at + s * chunk;
                for (stream, sums) in sums.iter_mut().enumerate() {
                    let lanes: V = A::whole(w.add(stream * k + here));
                    for (row, sums) in sums.iter_mut().enumerate() {
                        sums[s] = A::step(sums[s], A::whole(x.add(row * k + here)), lanes);
                    }
                }
            }
            at += SUMS * chunk;
        }
        let mut s = 0;
        while at < k {
            let count = chunk.min(k - at);
            for (stream, sums) in sums.iter_mut().enumerate() {
                let lanes = A::words::<V, T>(w.add(stream * k + at), count);
                for (row, sums) in sums.iter_mut().enumerate() {
                    sums[s] = A::step(sums[s], A::words::<V, X>(x.add(row * k + at), count), lanes);
                }
            }
            (at, s) = (at + count, s + 1);
        }
    }
    for (stream, sums) in sums.into_iter().enumerate() {
        for (row, [a, b, c, d]) in sums.into_iter().enumerate() {
            to[row][i + stream] = ((a + b) + (c + d)).reduce_add();
        }
    }
    ROWS
}
