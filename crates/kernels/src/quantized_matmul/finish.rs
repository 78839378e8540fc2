//! The steps after the products. Each step rounds to the element type, like a separate operation.

use std::marker::PhantomData;
use std::ops::Range;

use super::{Call, LowRank};
use crate::element::Float;
use crate::linear::arithmetic::Arithmetic;
use crate::linear::dense::Dense;
use crate::linear::gemm::{Epilogue, Extents, Weights, multiply};
use crate::linear::gemv::gemv;
use crate::linear::interleaved::Interleaved;
use crate::math::sigmoid;
use crate::simd::{F32x16, Kernel, LANES};
use crate::{Machine, Shared};

/// The steps after the product, and the address of the result. The element type is a parameter of
/// the functions.
pub(super) struct Finish<'a> {
    call: &'a Call<'a>,
    columns: usize,
    correction: Option<Correction>,
}

// SAFETY: inputs are only read; each output is written by one thread, after its residual was read.
unsafe impl Sync for Finish<'_> {}

impl<'a> Finish<'a> {
    /// # Safety
    /// The contract of [`super::quantized_matmul`] holds.
    pub unsafe fn new<T: Float>(machine: Machine, call: &'a Call) -> Self {
        // SAFETY: the caller's contract; x is `[m, k]`, and a row of A has `k` elements.
        unsafe {
            Self::with::<T>(machine, call, |low, rows| {
                let extents = Extents { m: call.rows, n: low.rank, k: call.axis };
                gemv(machine, extents, call.x.cast::<T>(), low.a.cast::<T>(), rows);
            })
        }
    }

    /// Prepares the steps for the rows of a prompt, whose x is interleaved.
    ///
    /// # Safety
    /// The contract of [`new`](Self::new); `x` is the input of the call.
    pub unsafe fn of_prompt<A, T>(machine: Machine, call: &'a Call, x: &Interleaved<A>) -> Self
    where
        A: Arithmetic,
        T: Float,
        Dense<T>: Weights<A>,
    {
        // SAFETY: the caller's contract; A is `[rank, axis]`.
        unsafe {
            Self::with::<T>(machine, call, |low, rows| {
                let extents = Extents { m: call.rows, n: low.rank, k: call.axis };
                let a = Dense::<T> { w: low.a.cast(), extents, columns: false };
                multiply(machine, x, low.rank, &a, rows);
            })
        }
    }

    unsafe fn with<T: Float>(
        machine: Machine,
        call: &'a Call,
        project: impl FnOnce(LowRank, &Rows<T>),
    ) -> Self {
        let low = call.low_rank.filter(|low| low.rank > 0);
        // SAFETY: the caller's contract.
        let correction = low.map(|low| unsafe { Correction::new(machine, call, low, project) });
        Self { call, columns: call.columns(), correction }
    }

    /// The address of column `at` of row `m` of the result.
    pub fn place<T>(&self, m: usize, at: usize) -> *mut T {
        self.call.out.cast::<T>().wrapping_add(m * self.columns + at)
    }

    /// Applies the steps to the rounded products of row `m` and columns `at..at + count`, and
    /// writes the results.
    ///
    /// # Safety
    /// The outputs exist, `count <= 16`, and no other thread accesses them.
    #[inline(always)]
    pub unsafe fn write<V: F32x16, T: Float>(&self, mut y: V, m: usize, at: usize, count: usize) {
        let (bias, residual) = (self.call.bias.cast::<T>(), self.call.residual.cast::<T>());
        // SAFETY: `count` columns from `at` on are within each row of each buffer.
        unsafe {
            if let Some(correction) = &self.correction {
                let sum = correction.of::<V, T>(m, at, count, self.columns);
                y = T::round(y + T::round(sum * V::splat(correction.low.scale)));
            }
            if !bias.is_null() {
                y = T::round(y + T::load_block::<V>(bias.add(at), count));
            }
            if !residual.is_null() {
                let residual = residual.add(m * self.columns + at);
                y = T::round(y + T::load_block::<V>(residual, count));
            }
            if count == LANES {
                T::store(y, self.place(m, at));
            } else {
                T::store_first(y, self.place(m, at), count);
            }
        }
    }
}

/// `silu(gate) * up` of rounded products.
#[inline(always)]
pub(super) fn swiglu<V: F32x16, T: Float>(gate: V, up: V) -> V {
    T::round(T::round(gate * sigmoid::<V, T>(gate)) * up)
}

/// A low-rank correction whose first product, `x · Aᵀ`, has been computed.
struct Correction {
    low: LowRank,
    /// `x · Aᵀ`, rounded to the element type. Each row is padded with zeros to full vectors.
    projected: Vec<f32>,
    /// Bᵀ, with each row padded to full vectors. Empty in the order `RowOrder::Tokens`.
    transposed: Vec<f32>,
}

impl Correction {
    /// # Safety
    /// The contract of [`super::quantized_matmul`] holds.
    unsafe fn new<T: Float>(
        machine: Machine,
        call: &Call,
        low: LowRank,
        project: impl FnOnce(LowRank, &Rows<T>),
    ) -> Self {
        let padded = low.rank.next_multiple_of(LANES);
        let mut projected = vec![0.0; call.rows * padded];
        let rows = Rows::<T> { to: projected.as_mut_ptr(), padded, element: PhantomData };
        project(low, &rows);
        let mut transposed = Vec::new();
        if !call.of_tokens() {
            let columns = call.columns();
            let width = columns.next_multiple_of(LANES);
            transposed.resize(low.rank * width, 0.0);
            let (b, to) = (Shared(low.b.cast_mut()), Shared(transposed.as_mut_ptr()));
            let rank = low.rank;
            machine.pool.for_each(columns, 20 * rank, &|range| {
                let (b, to) = (b.get().cast_const().cast::<T>(), to.get());
                // SAFETY: B has a row of `rank` elements for each column, `to` has `rank` rows
                // of `width` elements; the ranges of columns are disjoint.
                unsafe { machine.level.run(Transpose { b, rank, width, range, to }) };
            });
        }
        Self { low, projected, transposed }
    }

    /// `(x · Aᵀ) · Bᵀ`, rounded, for row `m` and columns `at..at + count`. B has `columns` rows.
    ///
    /// # Safety
    /// The columns belong to B, and the row to x.
    #[inline(always)]
    unsafe fn of<V: F32x16, T: Float>(
        &self,
        m: usize,
        at: usize,
        count: usize,
        columns: usize,
    ) -> V {
        let rank = self.low.rank;
        let of_x = self.projected[m * rank.next_multiple_of(LANES)..].as_ptr();
        // SAFETY: B has a row of `rank` elements for each column, and `projected` has such a row
        // for each row of x. `transposed`, unless it is empty, has `rank` rows of all columns.
        unsafe {
            if self.transposed.is_empty() {
                let mut block = [0.0; LANES];
                for (column, product) in block.iter_mut().enumerate().take(count) {
                    let b = self.low.b.cast::<T>().add((at + column) * rank);
                    let mut sum = V::splat(0.0);
                    for i in (0..rank).step_by(LANES) {
                        let b = T::load_block::<V>(b.add(i), LANES.min(rank - i));
                        sum = V::load(of_x.add(i)).mul_add(b, sum);
                    }
                    *product = sum.reduce_add();
                }
                return T::round(V::load(block.as_ptr()));
            }
            let width = columns.next_multiple_of(LANES);
            let mut sum = V::splat(0.0);
            for i in 0..rank {
                let of_b = self.transposed.as_ptr().add(i * width + at);
                let of_b = f32::load_block::<V>(of_b, count);
                sum = of_b.mul_add(V::splat(*of_x.add(i)), sum);
            }
            T::round(sum)
        }
    }
}

/// Writes rounded products as rows of floats.
struct Rows<T> {
    to: *mut f32,
    padded: usize,
    element: PhantomData<T>,
}

// SAFETY: each product is written once, by one thread.
unsafe impl<T> Sync for Rows<T> {}

impl<T: Float> Epilogue for Rows<T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn finish<V: F32x16>(&self, sums: V, row: usize, column: usize, count: usize) {
        // SAFETY: the outputs exist.
        unsafe { T::round(sums).store_first(self.to.add(row * self.padded + column), count) }
    }
}

/// Transposes rows of B into columns of floats.
struct Transpose<T> {
    b: *const T,
    rank: usize,
    width: usize,
    range: Range<usize>,
    to: *mut f32,
}

impl<T: Float> Kernel for Transpose<T> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for column in self.range {
            for i in (0..self.rank).step_by(LANES) {
                let count = LANES.min(self.rank - i);
                let mut lanes = [0.0f32; LANES];
                // SAFETY: the contract stated where `Correction::new` runs this kernel.
                unsafe {
                    let row = self.b.add(column * self.rank + i);
                    T::load_block::<V>(row, count).store(lanes.as_mut_ptr());
                    for (lane, value) in lanes.iter().enumerate().take(count) {
                        *self.to.add((i + lane) * self.width + column) = *value;
                    }
                }
            }
        }
    }
}
