//! The gradients of logsumexp and of log-softmax.

use std::ops::Range;

use super::{WORK, row_stats};
use crate::element::{Element, Float, with_element};
use crate::fold::{Sum, fold_row};
use crate::output::Output;
use crate::simd::{F32x16, Kernel, LANES};
use crate::softmax::exponential;
use crate::{Machine, Shared};

/// Computes the gradient of [`logsumexp`](super::logsumexp), `softmax(x) * g`, where `g` has one
/// element for each row. If `subtracted`, computes the gradient of
/// [`log_softmax`](super::log_softmax), `g - softmax(x) * sum(g)`, where `g` has the shape of `x`.
///
/// # Safety
/// `x` and `out` hold `rows * axis` elements. `g` holds `rows` elements, or `rows * axis` if
/// `subtracted`. All are aligned to the element. `out` is `x` itself, or `g` if `subtracted`, or
/// overlaps nothing.
pub unsafe fn logsumexp_grad(
    element: Element,
    [x, g]: [*const u8; 2],
    out: *mut u8,
    [rows, axis]: [usize; 2],
    subtracted: bool,
) {
    let machine = Machine::current();
    // SAFETY: the caller's contract; this CPU has the instruction set of `machine`.
    with_element!(element, T => unsafe {
        let inputs = [x.cast(), g.cast()];
        match subtracted {
            true => grad_on::<T, true>(machine, inputs, out.cast(), rows, axis),
            false => grad_on::<T, false>(machine, inputs, out.cast(), rows, axis),
        }
    })
}

pub unsafe fn grad_on<T: Float, const SUBTRACT: bool>(
    machine: Machine,
    [x, g]: [*const T; 2],
    out: *mut T,
    rows: usize,
    axis: usize,
) {
    if axis == 0 {
        return;
    }
    let out = Output::new(out, &[x, g], rows * axis, axis);
    let (x, g) = (Shared(x.cast_mut()), Shared(g.cast_mut()));
    machine.pool.for_each(rows, 2 * WORK * axis, &|rows| {
        let kernel = Grad::<T, SUBTRACT> { x: x.get(), g: g.get(), out, axis, rows };
        // SAFETY: the caller's contract; the ranges of rows are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

struct Grad<T, const SUBTRACT: bool> {
    x: *const T,
    g: *const T,
    out: Output<T>,
    axis: usize,
    rows: Range<usize>,
}

impl<T: Float, const SUBTRACT: bool> Kernel for Grad<T, SUBTRACT> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let axis = self.axis;
        for row in self.rows {
            // SAFETY: the row lies within the buffers, and elements are read before they are
            // overwritten.
            unsafe {
                let (x, out) = (self.x.add(row * axis), self.out.add(row * axis));
                let g = self.g.add(if SUBTRACT { row * axis } else { row });
                let stats = row_stats::<V, T, false>(x, axis);
                let total = fold_row::<V, T, Sum>(Sum, g, if SUBTRACT { axis } else { 1 });
                let factor = V::splat(total / stats.sum);
                let base = V::splat(stats.base());
                for i in (0..axis).step_by(LANES) {
                    let count = LANES.min(axis - i);
                    let mut y: V = exponential::<V, T>(T::load_block::<V>(x.add(i), count) - base);
                    y = y * factor;
                    if SUBTRACT {
                        y = T::load_block::<V>(g.add(i), count) - y;
                    }
                    out.put_block(y, i, count);
                }
            }
        }
    }
}
