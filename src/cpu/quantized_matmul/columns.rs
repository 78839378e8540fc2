//! A range of the result's columns: the products, then what follows them, sixteen at a time.

use std::marker::PhantomData;
use std::ops::Range;

use super::prepare::Prepared;
use super::{Call, Join, LowRank, Weights};
use crate::cpu::element::Float;
use crate::cpu::math::exp_nonpositive;
use crate::cpu::simd::{F32x16, Kernel, LANES};
use crate::cpu::{Machine, Shared};

/// Rows of x that take part while a row of weights is in the cache.
const BAND: usize = 8;

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

/// How a row of weights is multiplied.
pub(super) trait Dots {
    const BITS: usize;
    const SCALE_BYTES: usize;

    /// The products of one row of weights with rows `first..first + M` of x.
    ///
    /// # Safety
    /// The operands are those of a row of the call, prepared in this trait's order.
    unsafe fn dot<V: F32x16, const M: usize>(row: Operands, first: usize) -> [f32; M];
}

/// Sixteen columns of a band of rows.
type Block = [[f32; LANES]; BAND];

pub(super) struct Columns<'a, T> {
    pub element: PhantomData<T>,
    pub call: &'a Call<'a>,
    pub prepared: &'a Prepared,
    /// `x · Aᵀ`, each row padded to whole vectors.
    pub low: Option<&'a [f32]>,
    pub range: Range<usize>,
}

impl<T: Float> Columns<'_, T> {
    /// # Safety
    /// The contract of [`super::quantized_matmul`]; nobody else has these columns.
    #[inline(always)]
    pub unsafe fn run<V: F32x16, D: Dots>(&self) {
        let call = self.call;
        for top in (0..call.rows).step_by(BAND) {
            let band = top..call.rows.min(top + BAND);
            // SAFETY: the caller's contract; each block's columns are some of this range.
            unsafe {
                if let (Join::Swiglu, [gate, up, ..]) = (call.join, call.weights) {
                    self.each_block(0, gate.columns, |at, count| {
                        let gates = self.products::<V, D>(gate, at, count, &band);
                        let ups = self.products::<V, D>(up, at, count, &band);
                        self.finish::<V>(&gates, Some(&ups), at, count, &band);
                    });
                    continue;
                }
                let mut first = 0;
                for weights in call.weights {
                    self.each_block(first, weights.columns, |at, count| {
                        let block = self.products::<V, D>(weights, at - first, count, &band);
                        self.finish::<V>(&block, None, at, count, &band);
                    });
                    first += weights.columns;
                }
            }
        }
    }

    /// Blocks of up to sixteen of this range's columns that are among `first..first + count`.
    #[inline(always)]
    fn each_block(&self, first: usize, count: usize, mut run: impl FnMut(usize, usize)) {
        let end = self.range.end.min(first + count);
        let mut at = self.range.start.max(first);
        while at < end {
            let count = LANES.min(end - at);
            run(at, count);
            at += count;
        }
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
        for column in 0..count {
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
                let mut put = |products: &[f32]| {
                    for (i, &product) in products.iter().enumerate() {
                        block[m - band.start + i][column] = product;
                    }
                    products.len()
                };
                // SAFETY: the row is one of the weights', the rows of x are the call's.
                m += unsafe {
                    match band.end - m {
                        4.. => put(&D::dot::<V, 4>(operands, m)),
                        2.. => put(&D::dot::<V, 2>(operands, m)),
                        _ => put(&D::dot::<V, 1>(operands, m)),
                    }
                };
            }
        }
        block
    }

    /// Rounds and writes columns `at..at + count`, each step as an operation of its own would.
    #[inline(always)]
    unsafe fn finish<V: F32x16>(
        &self,
        block: &Block,
        ups: Option<&Block>,
        at: usize,
        count: usize,
        band: &Range<usize>,
    ) {
        let call = self.call;
        let columns = call.columns();
        let (bias, residual, out) =
            (call.bias.cast::<T>(), call.residual.cast::<T>(), call.out.cast::<T>());
        for m in band.clone() {
            let start = m * columns + at;
            // SAFETY: `count` columns from `at` on are within each row of each buffer.
            unsafe {
                let mut y = T::round(V::load(block[m - band.start].as_ptr()));
                if let Some(ups) = ups {
                    let up = T::round(V::load(ups[m - band.start].as_ptr()));
                    y = T::round(T::round(y * T::round(sigmoid(y))) * up);
                }
                if !bias.is_null() {
                    y = T::round(y + T::load_first(bias.add(at), count));
                }
                if let (Some(low_rank), Some(low)) = (call.low_rank, self.low) {
                    let correction = self.correction::<V>(&low_rank, low, m, at, count);
                    y = T::round(y + T::round(correction * V::splat(low_rank.scale)));
                }
                if !residual.is_null() {
                    y = T::round(y + T::load_first(residual.add(start), count));
                }
                if count == LANES {
                    T::store(y, out.add(start));
                } else {
                    T::store_first(y, out.add(start), count);
                }
            }
        }
    }

    /// `(x · Aᵀ) · Bᵀ` of row m, rounded.
    #[inline(always)]
    unsafe fn correction<V: F32x16>(
        &self,
        low_rank: &LowRank,
        low: &[f32],
        m: usize,
        at: usize,
        count: usize,
    ) -> V {
        let rank = low_rank.rank;
        let low = low[m * rank.next_multiple_of(LANES)..].as_ptr();
        let mut block = [0.0; LANES];
        for (column, product) in block.iter_mut().enumerate().take(count) {
            // SAFETY: B has a row of `rank` for each column, `low` as many for each row of x.
            unsafe {
                let b = low_rank.b.cast::<T>().add((at + column) * rank);
                let mut sum = V::splat(0.0);
                for i in (0..rank).step_by(LANES) {
                    let here = LANES.min(rank - i);
                    sum = V::load(low.add(i)).mul_add(T::load_first(b.add(i), here), sum);
                }
                *product = sum.reduce_add();
            }
        }
        // SAFETY: sixteen floats.
        T::round(unsafe { V::load(block.as_ptr()) })
    }
}

/// `1 / (1 + e^-x)`, from the exponential that cannot overflow.
#[inline(always)]
fn sigmoid<V: F32x16>(x: V) -> V {
    let e = exp_nonpositive(V::splat(0.0) - x.abs());
    let (mut signs, mut powers) = ([0.0f32; LANES], [0.0f32; LANES]);
    // SAFETY: both arrays hold sixteen floats.
    unsafe {
        x.store(signs.as_mut_ptr());
        e.store(powers.as_mut_ptr());
        for (x, e) in signs.iter().zip(&mut powers) {
            *e = if *x < 0.0 { *e } else { 1.0 } / (1.0 + *e);
        }
        V::load(powers.as_ptr())
    }
}

/// `x · Aᵀ` rounded to the element type, each row padded with zeros to whole vectors.
///
/// # Safety
/// The contract of [`super::quantized_matmul`].
pub(super) unsafe fn project<T: Float>(machine: Machine, call: &Call, low: &LowRank) -> Vec<f32> {
    let padded = low.rank.next_multiple_of(LANES);
    let mut out = vec![0.0; call.rows * padded];
    let to = Shared(out.as_mut_ptr());
    let (a, rank) = (Shared(low.a.cast_mut()), low.rank);
    // A row of A takes some twenty elements a nanosecond.
    machine.pool.for_each(call.rows * rank, call.axis / 2 + 10, &|range| {
        let project = Project::<T> {
            x: call.x.cast(),
            a: a.get().cast(),
            axis: call.axis,
            rank,
            padded,
            range,
            to: to.get(),
        };
        // SAFETY: the caller's contract; the ranges of products are disjoint.
        unsafe { machine.level.run(project) };
    });
    out
}

struct Project<T> {
    x: *const T,
    a: *const T,
    axis: usize,
    rank: usize,
    padded: usize,
    range: Range<usize>,
    to: *mut f32,
}

impl<T: Float> Kernel for Project<T> {
    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for index in self.range {
            let (m, i) = (index / self.rank, index % self.rank);
            // SAFETY: the axis is a multiple of 32, so blocks of sixteen lie within both rows.
            unsafe {
                let (x, a) = (self.x.add(m * self.axis), self.a.add(i * self.axis));
                let mut sums = [V::splat(0.0); 2];
                for at in (0..self.axis).step_by(2 * LANES) {
                    for (half, sum) in sums.iter_mut().enumerate() {
                        let at = at + half * LANES;
                        *sum = T::load::<V>(x.add(at)).mul_add(T::load(a.add(at)), *sum);
                    }
                }
                let sum = V::splat((sums[0] + sums[1]).reduce_add());
                T::round(sum).store_first(self.to.add(m * self.padded + i), 1);
            }
        }
    }
}
