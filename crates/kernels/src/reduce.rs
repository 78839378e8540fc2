//! Reductions of rows to one number each: sums, means, maxima, sums of squares, L2 norms.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::fold::{Fold, Max, Squares, Sum, fold_row};
use super::simd::{F32x16, Kernel};
use super::{Machine, Shared};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reduction {
    Sum,
    Mean,
    Max,
    SumOfSquares,
    Norm,
}

/// Elements of a piece of a long row. Pieces do not depend on the threads, nor does the result.
const PIECE: usize = 16_384;
/// From this many rows on there is one for every thread, however long they are.
const MANY_ROWS: usize = 64;

/// Accumulates in f32 and rounds once. No elements: 0, for the mean NaN, for the maximum -inf.
///
/// # Safety
/// `x` holds `rows * axis` elements and `out` holds `rows`, aligned to the element and apart.
pub unsafe fn reduce(
    element: Element,
    reduction: Reduction,
    x: *const u8,
    out: *mut u8,
    rows: usize,
    axis: usize,
) {
    let machine = Machine::current();
    // SAFETY: the caller's contract, and the machine is this one.
    with_element!(element, T => unsafe {
        reduce_on::<T>(machine, reduction, x.cast(), out.cast(), rows, axis)
    })
}

unsafe fn reduce_on<T: Float>(
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
            Reduction::Sum => fold_rows(machine, Sum, Sum, |sum| sum, x, out, rows, axis),
            Reduction::Mean => {
                // MLX multiplies by this rounded reciprocal.
                let reciprocal = (1.0 / axis as f64) as f32;
                fold_rows(machine, Sum, Sum, |sum| sum * reciprocal, x, out, rows, axis)
            }
            Reduction::Max => fold_rows(machine, Max, Max, |max| max, x, out, rows, axis),
            Reduction::SumOfSquares => {
                fold_rows(machine, Squares, Sum, |sum| sum, x, out, rows, axis)
            }
            Reduction::Norm => fold_rows(machine, Squares, Sum, f32::sqrt, x, out, rows, axis),
        }
    }
}

/// Folds rows, long ones in pieces whose results `merge` then folds.
#[expect(clippy::too_many_arguments, reason = "how and what")]
#[inline(always)]
unsafe fn fold_rows<T: Float, F: Fold + Sync, M: Fold + Sync>(
    machine: Machine,
    fold: F,
    merge: M,
    finish: impl Fn(f32) -> f32 + Copy + Sync,
    x: *const T,
    out: *mut T,
    rows: usize,
    axis: usize,
) {
    let (x, out) = (Shared(x.cast_mut()), Shared(out));
    if axis <= 2 * PIECE || rows >= MANY_ROWS {
        machine.pool.for_each(rows, axis.max(16), &|rows| {
            let (x, out) = (x.get().cast_const(), out.get());
            let kernel = Pieces { fold, finish, x, out, pieces: rows, piece: axis, axis };
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
        let kernel = Pieces { fold, finish: |v| v, x, out, pieces, piece: PIECE, axis };
        // SAFETY: the caller's contract; the ranges of pieces are disjoint.
        unsafe { machine.level.run(kernel) }
    });
    let (x, out) = (partials.as_ptr(), out.get());
    let kernel = Pieces { fold: merge, finish, x, out, pieces: 0..rows, piece: count, axis: count };
    // SAFETY: `count` partial results for each row.
    unsafe { machine.level.run(kernel) }
}

/// Each row is cut into pieces, the last of which may be shorter; each becomes one number.
struct Pieces<T, U, F, E> {
    fold: F,
    finish: E,
    x: *const T,
    out: *mut U,
    pieces: Range<usize>,
    piece: usize,
    axis: usize,
}

impl<T: Float, U: Float, F: Fold, E: Fn(f32) -> f32> Kernel for Pieces<T, U, F, E> {
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
                let value = (self.finish)(fold_row::<V, T, F>(self.fold, x, length));
                U::store_first(V::splat(value), self.out.add(index), 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{Bf16, F16};
    use crate::testing::*;

    const ALL: [Reduction; 5] =
        [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::SumOfSquares, Reduction::Norm];

    fn run<T: Sample>(on: Machine, kind: Reduction, x: &[T], rows: usize) -> Vec<T> {
        let mut out = vec![T::default(); rows];
        let axis = x.len().checked_div(rows).unwrap_or(7);
        // SAFETY: the buffers hold rows * axis and rows elements.
        unsafe { reduce_on(on, kind, x.as_ptr(), out.as_mut_ptr(), rows, axis) };
        out
    }

    /// The exact results and, for their errors, the sums of the terms' magnitudes.
    fn reference<T: Sample>(kind: Reduction, x: &[T], rows: usize) -> (Vec<f64>, Vec<f64>) {
        let axis = x.len().checked_div(rows).unwrap_or_default();
        (0..rows)
            .map(|row| {
                let row = x[row * axis..][..axis].iter().map(|v| f64::from(v.to_f32()));
                let magnitude: f64 = row.clone().map(f64::abs).sum();
                match kind {
                    Reduction::Sum => (row.sum(), magnitude),
                    Reduction::Mean => {
                        (row.sum::<f64>() / axis as f64, magnitude / axis.max(1) as f64)
                    }
                    Reduction::Max => (row.fold(f64::NEG_INFINITY, f64::max), 0.0),
                    Reduction::SumOfSquares => (row.map(|v| v * v).sum(), 0.0),
                    Reduction::Norm => (row.map(|v| v * v).sum::<f64>().sqrt(), 0.0),
                }
            })
            .unzip()
    }

    fn shapes<T: Sample>() {
        let long = [2 * PIECE + 1, 5 * PIECE + 77];
        for axis in AXES.into_iter().chain(long) {
            for rows in ROWS {
                if rows * axis > 400_000 && axis != long[0] {
                    continue;
                }
                let x = values::<T>(rows * axis, 3.0);
                for kind in ALL {
                    let first = run(machines()[0], kind, &x, rows);
                    let (exact, magnitudes) = reference(kind, &x, rows);
                    for i in 0..rows {
                        // The result's rounding, half a unit of f16's smallest at least, and some
                        // of those of a lane's additions: they average out far below their number.
                        let bound = (f64::from(T::EPSILON) / 2.0 * exact[i].abs()).max(3.1e-8)
                            + 1e-6 * (magnitudes[i] + exact[i].abs());
                        let got = f64::from(first[i].to_f32());
                        let overflow = T::from_f32(exact[i] as f32).to_f32().is_infinite();
                        let close = (got - exact[i]).abs() <= bound
                            || overflow && got == f64::INFINITY.copysign(exact[i])
                            || got == exact[i]
                            || got.is_nan() && exact[i].is_nan();
                        assert!(close, "{kind:?} {rows}x{axis}: {got:e}, expected {:e}", exact[i]);
                    }
                    for machine in &machines()[1..] {
                        assert_same(&run(*machine, kind, &x, rows), &first, "reduce");
                    }
                }
            }
        }
    }

    #[test]
    fn shapes_in_f32() {
        shapes::<f32>();
    }

    #[test]
    fn shapes_in_f16() {
        shapes::<F16>();
    }

    #[test]
    fn shapes_in_bf16() {
        shapes::<Bf16>();
    }

    #[test]
    fn no_elements() {
        for machine in machines() {
            let of = |kind| run::<f32>(machine, kind, &[], 2);
            assert_eq!(of(Reduction::Sum), [0.0; 2]);
            assert!(of(Reduction::Mean).iter().all(|v| v.is_nan()));
            assert_eq!(of(Reduction::Max), [f32::NEG_INFINITY; 2]);
            assert_eq!(of(Reduction::Norm), [0.0; 2]);
        }
    }

    #[test]
    fn one_nan_spoils_its_row_alone() {
        for machine in machines() {
            for kind in ALL {
                for axis in [1, 5, 16, 64, 100, 3 * PIECE] {
                    for at in [0, axis / 3, axis - 1] {
                        let mut x = vec![1.0f32; 3 * axis];
                        x[axis + at] = f32::NAN;
                        let out = run(machine, kind, &x, 3);
                        assert!(out[1].is_nan(), "{kind:?} {axis} {at}");
                        assert!(out[0].is_finite() && out[2].is_finite(), "{kind:?} {axis} {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn infinities_and_overflow() {
        const INF: f32 = f32::INFINITY;
        for machine in machines() {
            let of = |kind, x: &[f32]| run(machine, kind, x, 1)[0];
            assert_eq!(of(Reduction::Max, &[-INF; 40]), -INF);
            assert_eq!(of(Reduction::Max, &[-5.0; 33]), -5.0);
            assert_eq!(of(Reduction::Max, &[1.0, INF, 2.0]), INF);
            assert!(of(Reduction::Sum, &[INF, 1.0, -INF]).is_nan());
            assert_eq!(of(Reduction::Norm, &[-INF, 1.0]), INF);
            // Only the result has to fit into sixteen bits.
            let mut large = vec![F16::from_f32(60000.0); 40];
            large.extend(vec![F16::from_f32(-60000.0); 39]);
            assert_eq!(run(machine, Reduction::Sum, &large, 1)[0].to_f32(), 60000.0);
            assert_eq!(run(machine, Reduction::Max, &large, 1)[0].to_f32(), 60000.0);
            assert_eq!(run(machine, Reduction::SumOfSquares, &large, 1)[0].to_f32(), INF);
        }
    }
}
