//! A range of the result's columns: the products, then what follows them, sixteen at a time.

use std::ops::Range;

use super::finish::{Finish, swiglu};
use super::prepare::Prepared;
use super::{Call, Join, Weights};
use crate::cpu::element::Float;
use crate::cpu::simd::{F32x16, LANES, prefetch};

/// Rows of x that take part while a row of weights is in the cache.
const BAND: usize = 8;
/// Rows of x that share the decoded weights in registers.
const TOGETHER: usize = 4;

/// One row of weights, and the rows of x.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub packed: *const u8,
    pub scales: *const u8,
    pub biases: *const u8,
    pub axis: usize,
    pub group: usize,
    pub prepared: &'a Prepared,
}

/// How far ahead of the weights the next ones are asked for, in bytes; their scales as far ahead.
const AHEAD: usize = 4096;

impl Operands<'_> {
    /// Asks for the scales and biases that come `AHEAD` bytes of weights after those of the groups
    /// from `at` on: no prefetcher follows two more streams so slow.
    #[inline(always)]
    pub fn prefetch_scales<D: Dots>(&self, at: usize) {
        let ahead = at + AHEAD * 8 / (self.group * D::BITS);
        prefetch(self.scales.wrapping_add(ahead * D::SCALE_BYTES), 1);
        prefetch(self.biases.wrapping_add(ahead * D::SCALE_BYTES), 1);
    }
}

/// Asks for the weights that come after a chunk of so many bytes.
#[inline(always)]
pub(super) fn prefetch_weights(chunk: *const u8, bytes: usize) {
    prefetch(chunk.wrapping_add(AHEAD), bytes);
}

/// How a row of weights is multiplied.
pub(super) trait Dots {
    const BITS: usize;
    const SCALE_BYTES: usize;

    /// The products of one row of weights with some rows of x.
    ///
    /// # Safety
    /// The operands are those of a row of the call, prepared in this trait's order.
    unsafe fn dot<V: F32x16, const M: usize>(row: Operands, rows: [usize; M]) -> [f32; M];
}

/// Sixteen columns of a band of rows.
type Block = [[f32; LANES]; BAND];

pub(super) struct Columns<'a, T> {
    pub call: &'a Call<'a>,
    pub prepared: &'a Prepared,
    pub finish: &'a Finish<'a, T>,
    pub range: Range<usize>,
}

impl<T: Float> Columns<'_, T> {
    /// No closure has the kernel's instructions in it: one that is not inlined would have none of
    /// the level's features.
    ///
    /// # Safety
    /// The contract of [`super::quantized_matmul`]; nobody else has these columns.
    #[inline(always)]
    pub unsafe fn run<V: F32x16, D: Dots>(&self) {
        let call = self.call;
        for top in (0..call.rows).step_by(BAND) {
            let band = top..call.rows.min(top + BAND);
            let mut first = 0;
            for (index, weights) in call.weights.iter().enumerate() {
                if call.join == Join::Swiglu && index > 0 {
                    break;
                }
                for at in self.starts(first, weights.columns) {
                    let count = LANES.min(self.end(first, weights.columns) - at);
                    // SAFETY: the caller's contract; these columns are some of this range.
                    unsafe {
                        let mut block = self.products::<V, D>(weights, at - first, count, &band);
                        if call.join == Join::Swiglu {
                            let ups = self.products::<V, D>(&call.weights[1], at, count, &band);
                            for (gate, up) in block.iter_mut().zip(&ups) {
                                let (g, u) = (V::load(gate.as_ptr()), V::load(up.as_ptr()));
                                let y = swiglu::<V, T>(T::round(g), T::round(u));
                                y.store(gate.as_mut_ptr());
                            }
                        }
                        for m in band.clone() {
                            let y = T::round(V::load(block[m - top].as_ptr()));
                            self.finish.write(y, m, at, count);
                        }
                    }
                }
                first += weights.columns;
            }
        }
    }

    /// Where blocks of sixteen of this range's columns begin, among `first..first + count`.
    #[inline(always)]
    fn starts(&self, first: usize, count: usize) -> impl Iterator<Item = usize> + use<T> {
        (self.range.start.max(first)..self.end(first, count)).step_by(LANES)
    }

    fn end(&self, first: usize, count: usize) -> usize {
        self.range.end.min(first + count)
    }

    #[inline(always)]
    unsafe fn products<V: F32x16, D: Dots>(
        &self,
        weights: &Weights,
        at: usize,
        count: usize,
        band: &Range<usize>,
    ) -> Block {
        let call = self.call;
        let row_bytes = call.axis * D::BITS / 8;
        let scale_bytes = call.axis / call.group * D::SCALE_BYTES;
        let mut block = [[0.0; LANES]; BAND];
        let mut column = 0;
        while column < count {
            let row = at + column;
            let operands = Operands {
                packed: weights.packed.wrapping_add(row * row_bytes),
                scales: weights.scales.wrapping_add(row * scale_bytes),
                biases: weights.biases.wrapping_add(row * scale_bytes),
                axis: call.axis,
                group: call.group,
                prepared: self.prepared,
            };
            let mut m = band.start;
            while m < band.end {
                // Two rows or three cost what four do: the weights, not the sums, are waited for.
                let rows = (band.end - m).min(TOGETHER);
                let mut put = |products: &[f32]| {
                    for (i, &product) in products.iter().enumerate().take(rows) {
                        block[m - band.start + i][column] = product;
                    }
                };
                // SAFETY: the row is one of the weights', the rows of x are the call's.
                unsafe {
                    match rows {
                        1 => put(&D::dot::<V, 1>(operands, [m])),
                        _ => put(&D::dot::<V, TOGETHER>(
                            operands,
                            std::array::from_fn(|i| (m + i).min(band.end - 1)),
                        )),
                    }
                }
                m += rows;
            }
            column += 1;
        }
        block
    }
}
