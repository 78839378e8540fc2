//! The product of two factors. One factor is interleaved (see `interleaved.rs`), and the rows of
//! the other are unpacked a few at a time. Either x or the weights can be interleaved. Each sum
//! adds its terms in the same order in both cases.

use super::super::Machine;
use super::super::element::Float;
use super::arithmetic::Arithmetic;
use super::dense::Dense;
use super::epilogue::{Block, Epilogue, OnLevel, Steps, Sums};
use super::gemm::{in_tiles, multiply, multiply_with};
use super::interleaved::{Factor, Interleaved};
use super::sums::BLOCK_ROWS;
use super::weights::Weights;

/// The largest number of words of the weights that are interleaved at a time, 32 MB, unless
/// [`BLOCK_ROWS`] rows have more.
const WORDS: usize = 8 << 20;

/// Multiplies x, `[m, k]`, with weights, `[n, k]`.
///
/// # Safety
/// x and the weights have these shapes, and the epilogue writes `[m, n]`.
pub unsafe fn product<A: Arithmetic, T: Float>(
    machine: Machine,
    x: &Dense<T>,
    n: usize,
    weights: &impl Factor<A>,
    epilogue: &impl Epilogue,
) where
    Dense<T>: Weights<A>,
{
    let m = x.extents.n;
    // SAFETY: the caller's contract.
    unsafe {
        if exchanges(in_tiles(machine, weights), (m, x.columns), (n, weights.lie_across())) {
            exchanged(machine, x, n, weights, &OnLevel { level: machine.level, epilogue });
        } else {
            let body = |x: &Interleaved<A>| multiply(machine, x, n, weights, epilogue);
            Factor::<A>::interleaved(x, machine, 0..m, &body);
        }
    }
}

/// Whether to interleave the weights and unpack x, instead of the other way round. A factor is
/// interleaved once, which takes time in proportion to its size. So a factor that is much smaller
/// than the other one should be interleaved.
///
/// With tile instructions, such as AMX's, a factor that is stored with k as its first axis (it
/// "lies across") should also be interleaved, because its rows would have to be transposed before
/// they are unpacked. If both factors lie across, the weights are interleaved, so that the sums
/// need no transpose, unless the weights have more than twice as many rows as x.
///
/// Without tile instructions, weights that lie across are interleaved too if x lies across or has
/// at least [`BLOCK_ROWS`] rows: to unpack them again for each block of x would take longer, and
/// the sums would need a transpose.
fn exchanges(in_tiles: bool, (m, x_across): (usize, bool), (n, w_across): (usize, bool)) -> bool {
    match in_tiles {
        true if x_across && w_across => n <= 2 * m,
        true if x_across || w_across => w_across,
        true => 4 * n <= m,
        false => 4 * n <= m || w_across && (x_across || m >= BLOCK_ROWS),
    }
}

/// Multiplies the rows of x with `n` rows of weights. The weights are interleaved in place of x.
///
/// # Safety
/// The contract of [`product`] holds.
unsafe fn exchanged<A: Arithmetic, T: Float>(
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

/// The steps after a product whose rows and columns are exchanged. The rows of the product are the
/// columns of the output, from column `first` on.
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
