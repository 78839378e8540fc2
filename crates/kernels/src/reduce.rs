//! Reduces rows to one number each: sums, means, maxima, sums of squares, L2 norms.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::fold::{Fold, Max, Squares, Sum, fold_row};
use super::output::Output;
use super::simd::{F32x16, Kernel, LANES};
use super::{Machine, Shared};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Reduction {
    Sum,
    Mean,
    Max,
    SumOfSquares,
    Norm,
}

/// The number of elements in a piece of a long row. Neither the pieces nor the result depend on the
/// number of threads.
pub const PIECE: usize = 16_384;
/// If there are at least this many rows, rows are not split, since up to 64 threads have some then.
const MANY_ROWS: usize = 64;

/// Whether the rows are long and few, so that several threads share each row.
fn is_split(rows: usize, axis: usize) -> bool {
    axis > 2 * PIECE && rows < MANY_ROWS
}

/// Reduces each row to one number. Accumulates in f32 and rounds once. An empty row gives 0, or NaN
/// for the mean and -inf for the maximum.
///
/// # Safety
/// `x` holds `rows * axis` elements and `out` holds `rows`, aligned to the element. They do not
/// overlap.
pub unsafe fn reduce(
    element: Element,
    reduction: Reduction,
    x: *const u8,
    out: *mut u8,
    rows: usize,
    axis: usize,
) {
    let machine = Machine::current();
    // SAFETY: the caller's contract; this CPU has the instruction set of `machine`.
    with_element!(element, T => unsafe {
        reduce_on::<T>(machine, reduction, x.cast(), out.cast(), rows, axis)
    })
}

pub unsafe fn reduce_on<T: Float>(
    machine: Machine,
    reduction: Reduction,
    x: *const T,
    out: *mut T,
    rows: usize,
    axis: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match reduction {
            Reduction::Sum => fold_rows(machine, Sum, Sum, After::Keep, x, out, rows, axis),
            Reduction::Mean => {
                // MLX multiplies by this rounded reciprocal.
                let after = After::Multiply((1.0 / axis as f64) as f32);
                fold_rows(machine, Sum, Sum, after, x, out, rows, axis)
            }
            Reduction::Max => fold_rows(machine, Max, Max, After::Keep, x, out, rows, axis),
            Reduction::SumOfSquares => {
                fold_rows(machine, Squares, Sum, After::Keep, x, out, rows, axis)
            }
            Reduction::Norm => fold_rows(machine, Squares, Sum, After::Root, x, out, rows, axis),
        }
    }
}

/// The last step for a folded row.
#[derive(Clone, Copy)]
enum After {
    Keep,
    Multiply(f32),
    Root,
}

/// Folds rows. Long rows are folded in pieces, and `merge` folds the results of the pieces.
#[expect(clippy::too_many_arguments, reason = "how and what")]
#[inline(always)]
unsafe fn fold_rows<T: Float, F: Fold + Sync, M: Fold + Sync>(
    machine: Machine,
    fold: F,
    merge: M,
    after: After,
    x: *const T,
    out: *mut T,
    rows: usize,
    axis: usize,
) {
    let (x, out) = (Shared(x.cast_mut()), Shared(out));
    if !is_split(rows, axis) {
        machine.pool.for_each(rows, axis.max(16), &|rows| {
            let (x, out) = (x.get().cast_const(), out.get());
            let kernel = Pieces { fold, after, x, out, pieces: rows, piece: axis, axis };
            // SAFETY: the caller's contract; the ranges of rows are disjoint.
            unsafe { machine.level.run(kernel) }
        });
        return;
    }
    let count = axis.div_ceil(PIECE);
    let mut partials = vec![0.0f32; rows * count];
    let to = Shared(partials.as_mut_ptr());
    machine.pool.for_each(rows * count, PIECE, &|pieces| {
        let (x, out) = (x.get().cast_const(), to.get());
        let kernel = Pieces { fold, after: After::Keep, x, out, pieces, piece: PIECE, axis };
        // SAFETY: the caller's contract; the ranges of pieces are disjoint.
        unsafe { machine.level.run(kernel) }
    });
    let (x, out) = (partials.as_ptr(), out.get());
    let kernel = Pieces { fold: merge, after, x, out, pieces: 0..rows, piece: count, axis: count };
    // SAFETY: each row has `count` partial results.
    unsafe { machine.level.run(kernel) }
}

/// Folds each piece of a row to one number. The last piece of a row may be shorter.
struct Pieces<T, U, F> {
    fold: F,
    after: After,
    x: *const T,
    out: *mut U,
    pieces: Range<usize>,
    piece: usize,
    axis: usize,
}

impl<T: Float, U: Float, F: Fold> Kernel for Pieces<T, U, F> {
    const BF16: bool = T::IS_BF16 || U::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let per_row = self.axis.div_ceil(self.piece.max(1)).max(1);
        for index in self.pieces {
            let (row, start) = (index / per_row, index % per_row * self.piece);
            let length = self.piece.min(self.axis - start);
            // SAFETY: the piece lies within its row, and its result within the output.
            unsafe {
                let x = self.x.add(row * self.axis + start);
                let folded = fold_row::<V, T, F>(self.fold, x, length);
                let value = match self.after {
                    After::Keep => folded,
                    After::Multiply(factor) => folded * factor,
                    After::Root => folded.sqrt(),
                };
                U::store_first(V::splat(value), self.out.add(index), 1);
            }
        }
    }
}

/// Computes the gradient `[rows, axis]` of x from g, the gradient of the results `y` of a
/// reduction. It is `x * g / y` for L2 norms. It is `x * 2 g` for sums of squares, where `y` may be
/// null. For maxima, each element that equals the maximum receives g divided by the number of such
/// elements. The gradient is computed in f32 and rounded once.
///
/// # Safety
/// `x` and `out` hold `rows * axis` elements, `g` and `y` hold `rows`, aligned to the element. They
/// do not overlap. The reduction is not a sum or a mean.
pub unsafe fn reduce_grad(
    element: Element,
    reduction: Reduction,
    [x, y, g]: [*const u8; 3],
    out: *mut u8,
    [rows, axis]: [usize; 2],
) {
    let (machine, of) = (Machine::current(), [x, y, g]);
    // SAFETY: the caller's contract; this CPU has the instruction set of `machine`.
    with_element!(element, T => unsafe {
        reduce_grad_on::<T>(machine, reduction, of.map(<*const u8>::cast), out.cast(), [rows, axis])
    })
}

/// # Safety
/// The contract of [`reduce_grad`] holds.
pub unsafe fn reduce_grad_on<T: Float>(
    machine: Machine,
    reduction: Reduction,
    of: [*const T; 3],
    out: *mut T,
    [rows, axis]: [usize; 2],
) {
    let out = Output::new(out, &of, rows * axis, axis);
    let of = of.map(|from| Shared(from.cast_mut()));
    // Several threads count the maxima of a long row, before any gradient is computed.
    let counted = reduction == Reduction::Max && is_split(rows, axis);
    let piece = if reduction == Reduction::Max && !counted { axis } else { PIECE.min(axis) };
    let per_row = axis.div_ceil(piece.max(1));
    let mut counts = Vec::new();
    if counted {
        let mut parts = vec![0.0f32; rows * per_row];
        let to = Shared(parts.as_mut_ptr());
        machine.pool.for_each(parts.len(), piece, &|pieces| {
            let [x, y, _] = of.each_ref().map(|from| from.get().cast_const());
            // SAFETY: the caller's contract; the threads have different pieces.
            unsafe { machine.level.run(Maxima { x, y, out: to.get(), pieces, axis }) }
        });
        let whole = |row: &[f32]| row.iter().map(|&part| u64::from(part as u32)).sum::<u64>();
        counts.extend(parts.chunks(per_row).map(|row| whole(row) as f32));
    }
    machine.pool.for_each(rows * per_row, piece, &|pieces| {
        let [x, y, g] = of.each_ref().map(|from| from.get().cast_const());
        let counts = &counts;
        // SAFETY: the caller's contract; the threads have different pieces.
        unsafe {
            machine.level.run(Slopes { reduction, x, y, g, counts, out, pieces, piece, axis })
        }
    });
}

/// Counts the elements that equal the maximum of their row, in each piece of a row.
struct Maxima<T> {
    x: *const T,
    y: *const T,
    out: *mut f32,
    pieces: Range<usize>,
    axis: usize,
}

impl<T: Float> Kernel for Maxima<T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let per_row = self.axis.div_ceil(PIECE);
        for index in self.pieces {
            let (row, start) = (index / per_row, index % per_row * PIECE);
            let end = self.axis.min(start + PIECE);
            // SAFETY: the piece lies within its row, and its result within the output.
            unsafe {
                let y = T::load_block::<V>(self.y.add(row), 1).reduce_add();
                let count = count_equal::<V, T>(self.x.add(row * self.axis), y, start..end);
                *self.out.add(index) = count;
            }
        }
    }
}

/// Computes the gradient of each piece of a row.
struct Slopes<'a, T> {
    reduction: Reduction,
    x: *const T,
    y: *const T,
    g: *const T,
    /// The number of maxima in each row, if [`Maxima`] has counted them.
    counts: &'a [f32],
    out: Output<T>,
    pieces: Range<usize>,
    piece: usize,
    axis: usize,
}

impl<T: Float> Kernel for Slopes<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { x, y, g, out, piece, axis, .. } = self;
        let per_row = axis.div_ceil(piece);
        for index in self.pieces {
            let (row, start) = (index / per_row, index % per_row * piece);
            let end = axis.min(start + piece);
            // SAFETY: the piece lies within its row, and the row's numbers exist.
            unsafe {
                let (x, out) = (x.add(row * axis), out.add(row * axis));
                let g = T::load_block::<V>(g.add(row), 1).reduce_add();
                if self.reduction == Reduction::SumOfSquares {
                    scale::<V, T>(x, V::splat(2.0 * g), out, start..end);
                    continue;
                }
                let y = T::load_block::<V>(y.add(row), 1).reduce_add();
                if self.reduction == Reduction::Norm {
                    scale::<V, T>(x, V::splat(g / y), out, start..end);
                    continue;
                }
                let count = match self.counts.get(row) {
                    Some(&count) => count,
                    None => count_equal::<V, T>(x, y, start..end),
                };
                let share = V::splat(g / count);
                for at in (start..end).step_by(LANES) {
                    let lanes = LANES.min(end - at);
                    let equal = ones_where_equal::<V, T>(x.add(at), y, lanes);
                    out.put_block(equal * share, at, lanes);
                }
            }
        }
    }
}

/// # Safety
/// The elements lie within both buffers.
#[inline(always)]
unsafe fn scale<V: F32x16, T: Float>(
    x: *const T,
    factor: V,
    out: Output<T>,
    elements: Range<usize>,
) {
    for at in elements.clone().step_by(LANES) {
        let count = LANES.min(elements.end - at);
        // SAFETY: the caller's contract.
        unsafe { out.put_block(T::load_block::<V>(x.add(at), count) * factor, at, count) };
    }
}

/// # Safety
/// The elements are readable.
#[inline(always)]
unsafe fn count_equal<V: F32x16, T: Float>(x: *const T, y: f32, elements: Range<usize>) -> f32 {
    let mut count = V::splat(0.0);
    for at in elements.clone().step_by(LANES) {
        let lanes = LANES.min(elements.end - at);
        // SAFETY: the caller's contract.
        let equal = unsafe { ones_where_equal::<V, T>(x.add(at), y, lanes) };
        count = count + equal.keep_first(lanes, 0.0);
    }
    count.reduce_add()
}

/// Returns 1 in the lanes where an element equals `y`, and 0 elsewhere. NaN equals nothing, and
/// zeros of both signs are equal.
///
/// # Safety
/// `count` elements are readable.
#[inline(always)]
unsafe fn ones_where_equal<V: F32x16, T: Float>(x: *const T, y: f32, count: usize) -> V {
    let (zero, one) = (V::splat(0.0), V::splat(if y.is_nan() { 0.0 } else { 1.0 }));
    // SAFETY: the caller's contract.
    let x = unsafe { T::load_block::<V>(x, count) } + zero;
    V::select(x.xor_bits((V::splat(y) + zero).to_bits()).to_bits(), zero, one)
}
