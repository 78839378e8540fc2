//! The gradient of a matrix from which rows were taken, such as an embedding. Each row of the
//! matrix gets the sum of the gradients of its copies, in their order.

use std::ops::Range;

use super::Machine;
use super::element::{Element, Float, with_element};
use super::output::Output;
use super::simd::{F32x16, Kernel, LANES};

/// The matrix `out` is `[rows, axis]`. `g` is `[ids.len(), axis]`: for each of `ids`, the gradient
/// of the copy of that row. Ids beyond the matrix are ignored. Sums are f32 and are rounded once.
///
/// # Safety
/// The buffers hold these elements, are aligned to them and do not overlap.
pub unsafe fn take_grad(
    element: Element,
    g: *const u8,
    ids: &[u32],
    out: *mut u8,
    [rows, axis]: [usize; 2],
) {
    let machine = Machine::current();
    // SAFETY: as the caller promises; `machine` is this machine.
    with_element!(element, T => unsafe {
        take_grad_on::<T>(machine, g.cast(), ids, out.cast(), [rows, axis])
    })
}

/// # Safety
/// The contract of [`take_grad`].
pub unsafe fn take_grad_on<T: Float>(
    machine: Machine,
    g: *const T,
    ids: &[u32],
    out: *mut T,
    [rows, axis]: [usize; 2],
) {
    let mut order: Vec<(u32, usize)> = ids.iter().copied().zip(0..).collect();
    order.sort_unstable();
    let out = Output::new(out, &[g], rows * axis, axis);
    let job = Job { g, order: &order, out, axis };
    machine.pool.for_each(rows, axis, &|rows| {
        // SAFETY: the caller's contract; the threads have different rows.
        unsafe { machine.level.run(Rows { job: &job, rows }) }
    });
}

struct Job<'a, T> {
    g: *const T,
    /// The row and the place of each copy, sorted by row and then by place.
    order: &'a [(u32, usize)],
    out: Output<T>,
    axis: usize,
}

// SAFETY: inputs are only read; the threads divide the output among themselves.
unsafe impl<T> Sync for Job<'_, T> {}

struct Rows<'a, T> {
    job: &'a Job<'a, T>,
    rows: Range<usize>,
}

impl<T: Float> Kernel for Rows<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let &Job { g, order, out, axis } = self.job;
        let mut left =
            &order[order.partition_point(|&(row, _)| (row as usize) < self.rows.start)..];
        for row in self.rows {
            let count = left.iter().take_while(|&&(of, _)| of as usize == row).count();
            let (copies, rest) = left.split_at(count);
            left = rest;
            for at in (0..axis).step_by(LANES) {
                let count = LANES.min(axis - at);
                let mut sum = V::splat(0.0);
                for &(_, place) in copies {
                    // SAFETY: the place is the index of one of the ids.
                    sum = sum + unsafe { T::load_block::<V>(g.add(place * axis + at), count) };
                }
                // SAFETY: the row exists.
                unsafe { out.add(row * axis).put_block(sum, at, count) };
            }
        }
    }
}
