//! What follows the products, each step rounded to the element type as an operation of its own.

use std::marker::PhantomData;
use std::ops::Range;

use super::format::load_first;
use super::{Call, LowRank};
use crate::cpu::element::Float;
use crate::cpu::math::sigmoid;
use crate::cpu::simd::{F32x16, Kernel, LANES};
use crate::cpu::{Machine, Shared};

/// The steps after the product and the place of the result.
#[repr(C)]
pub(super) struct Finish<'a, T> {
    call: &'a Call<'a>,
    columns: usize,
    /// `x · Aᵀ` of a low-rank correction, each row padded with zeros to whole vectors.
    low: Option<(LowRank, Vec<f32>)>,
    element: PhantomData<T>,
}

// SAFETY: inputs are only read; each output is written by one thread, after its residual was read.
unsafe impl<T> Sync for Finish<'_, T> {}

impl<'a, T: Float> Finish<'a, T> {
    /// # Safety
    /// The contract of [`super::quantized_matmul`].
    pub unsafe fn new(machine: Machine, call: &'a Call) -> Self {
        // SAFETY: the caller's contract.
        let low = call.low_rank.map(|low| (low, unsafe { project::<T>(machine, call, &low) }));
        Self { call, columns: call.columns(), low, element: PhantomData }
    }

    /// The same of another name for the element type.
    pub fn of<U: Float>(&self) -> &Finish<'a, U> {
        // SAFETY: the type is only named in a `PhantomData`.
        unsafe { &*std::ptr::from_ref(self).cast() }
    }

    /// Where row `m` has its column `at`.
    pub fn place(&self, m: usize, at: usize) -> *mut T {
        self.call.out.cast::<T>().wrapping_add(m * self.columns + at)
    }

    /// Takes the rounded products of row `m` with columns `at..at + count`.
    ///
    /// # Safety
    /// The outputs exist, `count <= 16`, and nobody else has them.
    #[inline(always)]
    pub unsafe fn write<V: F32x16>(&self, mut y: V, m: usize, at: usize, count: usize) {
        let (bias, residual) = (self.call.bias.cast::<T>(), self.call.residual.cast::<T>());
        // SAFETY: `count` columns from `at` on are within each row of each buffer.
        unsafe {
            if let Some((low, projected)) = &self.low {
                let correction = self.correction::<V>(low, projected, m, at, count);
                y = T::round(y + T::round(correction * V::splat(low.scale)));
            }
            if !bias.is_null() {
                y = T::round(y + load_first::<V, T>(bias.add(at), count));
            }
            if !residual.is_null() {
                let residual = residual.add(m * self.columns + at);
                y = T::round(y + load_first::<V, T>(residual, count));
            }
            if count == LANES {
                T::store(y, self.place(m, at));
            } else {
                T::store_first(y, self.place(m, at), count);
            }
        }
    }

    /// `(x · Aᵀ) · Bᵀ` of row m, rounded.
    #[inline(always)]
    unsafe fn correction<V: F32x16>(
        &self,
        low: &LowRank,
        projected: &[f32],
        m: usize,
        at: usize,
        count: usize,
    ) -> V {
        let rank = low.rank;
        let of_x = projected[m * rank.next_multiple_of(LANES)..].as_ptr();
        let mut block = [0.0; LANES];
        for (column, product) in block.iter_mut().enumerate().take(count) {
            // SAFETY: B has a row of `rank` for each column, `projected` one for each row of x.
            unsafe {
                let b = low.b.cast::<T>().add((at + column) * rank);
                let mut sum = V::splat(0.0);
                for i in (0..rank).step_by(LANES) {
                    let b = load_first::<V, T>(b.add(i), LANES.min(rank - i));
                    sum = V::load(of_x.add(i)).mul_add(b, sum);
                }
                *product = sum.reduce_add();
            }
        }
        // SAFETY: sixteen floats.
        T::round(unsafe { V::load(block.as_ptr()) })
    }
}

/// `silu(gate) * up` of rounded products.
#[inline(always)]
pub(super) fn swiglu<V: F32x16, T: Float>(gate: V, up: V) -> V {
    T::round(T::round(gate * sigmoid::<V, T>(gate)) * up)
}

/// `x · Aᵀ` rounded to the element type, each row padded with zeros to whole vectors.
///
/// # Safety
/// The contract of [`super::quantized_matmul`].
unsafe fn project<T: Float>(machine: Machine, call: &Call, low: &LowRank) -> Vec<f32> {
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
