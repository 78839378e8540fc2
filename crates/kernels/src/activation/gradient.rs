//! The gradients of functions of two elements. One pass over the arrays computes both gradients.

use std::ops::Range;

use super::slopes::relu_slope;
use super::table::{BATCH, Table, look_up};
use super::{BLOCK, Combination, Function, Gelu, GeluSlope, GeluTanh, GeluTanhSlope, Silu};
use super::{SiluSlope, table};
use crate::element::{Element, Float, with_element};
use crate::output::Output;
use crate::simd::{F32x16, Kernel, LANES, prefetch_block};
use crate::{Machine, Shared};

/// Computes the gradients with respect to elements a and b, given the gradient g of the result.
trait Pair: Sync {
    fn of<V: F32x16, T: Float>(a: V, b: V, g: V) -> [V; 2];
}

/// The gradients of `f(a) * b`.
struct OfGated<F, S>(std::marker::PhantomData<(F, S)>);
struct OfAddRelu;
struct OfMulRelu;

impl<F: Function, S: Function> Pair for OfGated<F, S> {
    #[inline(always)]
    fn of<V: F32x16, T: Float>(a: V, b: V, g: V) -> [V; 2] {
        [S::of::<V, T>(a) * (b * g), F::of::<V, T>(a) * g]
    }
}

impl Pair for OfAddRelu {
    #[inline(always)]
    fn of<V: F32x16, T: Float>(a: V, b: V, g: V) -> [V; 2] {
        [relu_slope(T::round(a + b)) * g; 2]
    }
}

impl Pair for OfMulRelu {
    #[inline(always)]
    fn of<V: F32x16, T: Float>(a: V, b: V, g: V) -> [V; 2] {
        let g = relu_slope(T::round(a * b)) * g;
        [g * b, g * a]
    }
}

/// Computes the gradients of a [`Combination`] of a and b. `outs` receives the gradient of a, then
/// the gradient of b. Does nothing for the variants of slopes. The functions and their derivatives
/// are rounded to the element type. They are multiplied in float32, and each result is rounded.
///
/// # Safety
/// `inputs` (a, b and the gradient of the result) and `outs` must hold `size` elements each, and be
/// aligned to the element type. An output must be one of the inputs or must not overlap any input.
/// The outputs must not overlap each other.
pub unsafe fn combination_grad(
    element: Element,
    kind: Combination,
    inputs: [*const u8; 3],
    outs: [*mut u8; 2],
    size: usize,
) {
    let machine = Machine::current();
    // SAFETY: the caller keeps the contract, and `machine` describes this machine.
    with_element!(element, T => unsafe {
        let (inputs, outs) = (inputs.map(|x| x.cast()), outs.map(|out| out.cast()));
        combination_grad_on::<T>(machine, kind, inputs, outs, size)
    })
}

pub unsafe fn combination_grad_on<T: Float>(
    machine: Machine,
    kind: Combination,
    inputs: [*const T; 3],
    outs: [*mut T; 2],
    size: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match kind {
            Combination::Swiglu => gated::<T, Silu, SiluSlope>(machine, inputs, outs, size),
            Combination::Geglu => gated::<T, Gelu, GeluSlope>(machine, inputs, outs, size),
            Combination::GegluTanh => {
                gated::<T, GeluTanh, GeluTanhSlope>(machine, inputs, outs, size);
            }
            Combination::AddRelu => map::<T, OfAddRelu>(machine, inputs, outs, size, 2),
            Combination::MulRelu => map::<T, OfMulRelu>(machine, inputs, outs, size, 2),
            _ => {}
        }
    }
}

unsafe fn gated<T: Float, F: Function, S: Function>(
    machine: Machine,
    inputs: [*const T; 3],
    outs: [*mut T; 2],
    size: usize,
) {
    let tables = table::<T, F>(machine, size).zip(table::<T, S>(machine, size));
    let Some((values, slopes)) = tables else {
        // SAFETY: the caller's contract.
        return unsafe { map::<T, OfGated<F, S>>(machine, inputs, outs, size, 8) };
    };
    let outs = outs.map(|out| Output::new(out, &inputs, size, BLOCK));
    let inputs = inputs.map(|x| Shared(x.cast_mut()));
    machine.pool.for_each(size.div_ceil(BLOCK), 2 * BLOCK, &|blocks| {
        let range = blocks.start * BLOCK..size.min(blocks.end * BLOCK);
        let inputs = [inputs[0].get(), inputs[1].get(), inputs[2].get()].map(|x| x.cast_const());
        // SAFETY: the caller keeps the contract, the ranges are disjoint, and T has 16 bits.
        unsafe { by_tables::<T>(machine, [slopes, values], inputs, outs, range) }
    });
}

/// # Safety
/// The buffers must hold the elements of the range, and T must have 16 bits.
unsafe fn by_tables<T: Float>(
    machine: Machine,
    tables: [&Table; 2],
    inputs: [*const T; 3],
    outs: [Output<T>; 2],
    range: Range<usize>,
) {
    let mut factors = [[0; BATCH]; 2];
    for start in range.clone().step_by(BATCH) {
        let count = BATCH.min(range.end - start);
        // SAFETY: the elements are within the range, and there are at most `BATCH` of them.
        unsafe {
            let [a, b, g] = inputs.map(|x| x.add(start));
            for (table, factors) in tables.iter().zip(&mut factors) {
                look_up(table, a.cast(), &mut factors[..count]);
            }
            let factors = [factors[0].as_ptr().cast(), factors[1].as_ptr().cast()];
            let outs = [outs[0].add(start), outs[1].add(start)];
            machine.level.run(Products { factors, b, g, outs, count });
        }
    }
}

/// Computes `[factors[0] * (b * g), factors[1] * g]`.
struct Products<T> {
    factors: [*const T; 2],
    b: *const T,
    g: *const T,
    outs: [Output<T>; 2],
    count: usize,
}

impl<T: Float> Kernel for Products<T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for at in (0..self.count).step_by(LANES) {
            let count = LANES.min(self.count - at);
            // SAFETY: every access is within the elements, and the code reads elements before it
            // overwrites them.
            unsafe {
                let sources = [self.factors[0], self.factors[1], self.b, self.g];
                prefetch_block(self.b.wrapping_add(at + BATCH));
                prefetch_block(self.g.wrapping_add(at + BATCH));
                let mut lanes = [V::splat(0.0); 4];
                for (lanes, from) in lanes.iter_mut().zip(sources) {
                    *lanes = T::load_mixed_block(from.add(at), count);
                }
                let [slope, value, b, g] = lanes;
                self.outs[0].put_mixed_block(slope * (b * g), at, count);
                self.outs[1].put_mixed_block(value * g, at, count);
            }
        }
    }
}

/// Computes both gradients of all elements. `work` is the time per element in tenths of a
/// nanosecond.
unsafe fn map<T: Float, P: Pair>(
    machine: Machine,
    inputs: [*const T; 3],
    outs: [*mut T; 2],
    size: usize,
    work: usize,
) {
    let outs = outs.map(|out| Output::new(out, &inputs, size, BLOCK));
    let inputs = inputs.map(|x| Shared(x.cast_mut()));
    machine.pool.for_each(size.div_ceil(BLOCK), BLOCK * work, &|blocks| {
        let range = blocks.start * BLOCK..size.min(blocks.end * BLOCK);
        let inputs = [inputs[0].get(), inputs[1].get(), inputs[2].get()].map(|x| x.cast_const());
        let kernel = Mapped { inputs, outs, range, pair: std::marker::PhantomData::<P> };
        // SAFETY: the caller keeps the contract, and the ranges are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

struct Mapped<T, P> {
    inputs: [*const T; 3],
    outs: [Output<T>; 2],
    range: Range<usize>,
    pair: std::marker::PhantomData<P>,
}

impl<T: Float, P: Pair> Kernel for Mapped<T, P> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let end = self.range.end;
        for at in self.range.step_by(LANES) {
            let count = LANES.min(end - at);
            // SAFETY: every access is within the range, and the code reads elements before it
            // overwrites them.
            unsafe {
                let mut lanes = [V::splat(0.0); 3];
                for (lanes, from) in lanes.iter_mut().zip(self.inputs) {
                    *lanes = T::load_mixed_block(from.add(at), count);
                }
                let [a, b, g] = lanes;
                let [of_a, of_b] = P::of::<V, T>(a, b, g);
                self.outs[0].put_mixed_block(of_a, at, count);
                self.outs[1].put_mixed_block(of_b, at, count);
            }
        }
    }
}
