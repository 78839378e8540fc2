//! Products whose weights are interleaved in place of x, and whose rows of x are unpacked in place of
//! weights. Each sum keeps its order.

use super::super::Machine;
use super::super::element::Float;
use super::arithmetic::Arithmetic;
use super::dense::Dense;
use super::epilogue::{Block, Steps, Sums};
use super::gemm::multiply_with;
use super::sums::BLOCK_ROWS;
use super::weights::{Factor, Weights};

/// The words that are interleaved at a time, 32 MB, unless [`BLOCK_ROWS`] rows have more.
const WORDS: usize = 8 << 20;

/// Multiplies rows of x with `n` rows of weights, which are interleaved.
///
/// # Safety
/// As for [`gemm`](super::gemm::gemm).
pub unsafe fn exchanged<A: Arithmetic, T: Float>(
    machine: Machine,
    x: &Dense<T>,
    n: usize,
    weights: &impl Factor<A>,
    steps: &dyn Steps,
) where
    Dense<T>: Weights<A>,
{
    let rows = WORDS / x.extents.k.div_ceil(A::PER_WORD).max(1) / BLOCK_ROWS * BLOCK_ROWS;
    let rows = rows.max(BLOCK_ROWS);
    for first in (0..n).step_by(rows) {
        let steps = Exchanged { steps, first };
        // SAFETY: the caller's contract.
        unsafe {
            weights.interleaved(machine, first..n.min(first + rows), &|w| {
                multiply_with(machine, w, x.extents.n, x, &steps);
            });
        }
    }
}

/// The steps of a product whose rows and columns are exchanged, for columns from `first` on.
struct Exchanged<'a> {
    steps: &'a dyn Steps,
    first: usize,
}

impl Steps for Exchanged<'_> {
    unsafe fn finish(&self, sums: Sums) {
        let Sums { sums, pitch, row, rows, column, columns } = sums;
        let (row, rows, column, columns) = (column, columns, self.first + row, rows);
        // SAFETY: the caller's contract.
        unsafe { self.steps.finish_block(Block { sums, pitch, row, rows, column, columns }) }
    }

    unsafe fn finish_block(&self, block: Block) {
        let Block { sums, pitch, row, rows, column, columns } = block;
        let (row, rows, column, columns) = (column, columns, self.first + row, rows);
        // SAFETY: the caller's contract.
        unsafe { self.steps.finish(Sums { sums, pitch, row, rows, column, columns }) }
    }
}
