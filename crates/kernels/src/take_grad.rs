//! The gradient of taking copies of rows from a matrix, such as an embedding. The gradient of a row
//! is the sum of the gradients of its copies, added up in the order of the copies.

use std::ops::Range;

use super::Machine;
use super::element::{Element, Float, with_element};
use super::output::Output;
use super::simd::{F32x16, Kernel, LANES};

/// Computes the gradient `out`, `[rows, axis]`, of the matrix from which `ids` took rows. `g`,
/// `[ids.len(), axis]`, has the gradient of each copy. Ids beyond the matrix are ignored. Sums are
/// f32 and are rounded once.
///
/// # Safety
/// The buffers hold these elements, are aligned for their types and do not overlap.
pub unsafe fn take_grad(
    element: Element,
    g: *const u8,
    ids: &[u32],
    out: *mut u8,
    [rows, axis]: [usize; 2],
) {
    let machine = Machine::current();
    // SAFETY: the caller upholds the contract; this machine supports `machine.level`.
    with_element!(element, T => unsafe {
        take_grad_on::<T>(machine, g.cast(), ids, out.cast(), [rows, axis])
    })
}

/// # Safety
/// The contract of [`take_grad`] applies.
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
        // SAFETY: the caller upholds the contract; the threads write different rows.
        unsafe { machine.level.run(Rows { job: &job, rows }) }
    });
}

struct Job<'a, T> {
    g: *const T,
    /// For each copy, the row and the index in `ids`, sorted by row and then by index.
    order: &'a [(u32, usize)],
    out: Output<T>,
    axis: usize,
}

// SAFETY: inputs are only read; each thread writes only its own rows of the output.
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
                    // SAFETY: `place` is an index into the ids.
                    sum = sum + unsafe { T::load_block::<V>(g.add(place * axis + at), count) };
                }
                // SAFETY: `row` is a row of the matrix.
                unsafe { out.add(row * axis).put_block(sum, at, count) };
            }
        }
    }
}
