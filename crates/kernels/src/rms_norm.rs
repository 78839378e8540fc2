//! RMS normalization: each row becomes `x / sqrt(mean(x²) + eps) * weight`.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::fold::{Squares, fold_row};
use super::output::Output;
use super::simd::{F32x16, Kernel, LANES, prefetch_block};
use super::{Machine, Shared};

/// Computes `x / sqrt(mean(x²) + eps) * weight` for each row, and rounds at the points where MLX's
/// composed ops round. The kernel computes the normalized value in f32, rounds it to the element
/// type, and then multiplies it by the weight.
///
/// # Safety
/// `x` and `out` hold `rows * axis` elements. `weight` holds `axis` elements or is null. All are
/// aligned for the element type. `out` is `x` itself or overlaps nothing.
pub unsafe fn rms_norm(
    element: Element,
    x: *const u8,
    weight: *const u8,
    out: *mut u8,
    rows: usize,
    axis: usize,
    eps: f32,
) {
    let machine = Machine::current();
    // SAFETY: the caller upholds the contract; this machine supports `machine.level`.
    with_element!(element, T => unsafe {
        rms_norm_on::<T>(machine, x.cast(), weight.cast(), out.cast(), rows, axis, eps)
    })
}

/// # Safety
/// The contract of [`rms_norm`] applies.
pub unsafe fn rms_norm_on<T: Float>(
    machine: Machine,
    x: *const T,
    weight: *const T,
    out: *mut T,
    rows: usize,
    axis: usize,
    eps: f32,
) {
    if axis == 0 {
        return;
    }
    let out = Output::new(out, &[x], rows * axis, axis);
    let (x, weight) = (Shared(x.cast_mut()), Shared(weight.cast_mut()));
    machine.pool.for_each(rows, axis, &|rows| {
        let kernel = RmsNorm { x: x.get(), weight: weight.get(), out, rows, axis, eps };
        // SAFETY: the caller upholds the contract; the ranges of rows are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

struct RmsNorm<T> {
    x: *const T,
    weight: *const T,
    out: Output<T>,
    rows: Range<usize>,
    axis: usize,
    eps: f32,
}

impl<T: Float> Kernel for RmsNorm<T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for row in self.rows {
            let at = row * self.axis;
            // SAFETY: the row lies within both buffers.
            unsafe {
                let (x, out) = (self.x.add(at), self.out.add(at));
                let next = [x.wrapping_add(self.axis)];
                rms_norm_row::<V, T, 1>(x, self.weight, out, self.axis, self.eps, next);
            }
        }
    }
}

/// Returns `1 / sqrt(mean(x²) + eps)`. Every kernel that computes an RMS norm calls it; the kernel
/// of the gradient (`norm_grad`) does not.
///
/// # Safety
/// `x` is readable for `axis` elements.
#[inline(always)]
pub(super) unsafe fn inverse_rms<V: F32x16, T: Float>(x: *const T, axis: usize, eps: f32) -> f32 {
    // As MLX does, multiply the sum by a rounded reciprocal instead of dividing it.
    let reciprocal = (1.0 / axis as f64) as f32;
    // SAFETY: the caller upholds the contract.
    let mean = unsafe { fold_row::<V, T, Squares>(Squares, x, axis) } * reciprocal;
    let inverse = 1.0 / (mean + eps).sqrt();
    // `round_number` accepts only NaNs that were loaded from the element type or that arithmetic
    // produced. A NaN in `eps` may have other bits.
    if inverse.is_nan() { f32::NAN } else { inverse }
}

/// Normalizes one row of `axis >= 1` elements. `weight` may be null, and `out` may be `x`.
/// Prefetches the rows in `next`, which the caller reads afterwards.
#[inline(always)]
pub(super) unsafe fn rms_norm_row<V: F32x16, T: Float, const NEXT: usize>(
    x: *const T,
    weight: *const T,
    out: Output<T>,
    axis: usize,
    eps: f32,
    next: [*const T; NEXT],
) {
    // SAFETY: the caller passes a valid row, and a valid weight or null.
    unsafe {
        let inverse = V::splat(inverse_rms::<V, T>(x, axis, eps));
        if weight.is_null() {
            normalize::<V, T, NEXT, false>(x, weight, out, axis, inverse, next);
        } else {
            normalize::<V, T, NEXT, true>(x, weight, out, axis, inverse, next);
        }
    }
}

#[inline(always)]
unsafe fn normalize<V: F32x16, T: Float, const NEXT: usize, const WEIGHTED: bool>(
    x: *const T,
    weight: *const T,
    out: Output<T>,
    axis: usize,
    inverse: V,
    next: [*const T; NEXT],
) {
    let mut i = 0;
    // SAFETY: every access is within the row, and each block is read before it is overwritten.
    unsafe {
        while i + LANES <= axis {
            for row in next {
                prefetch_block(row.wrapping_add(i));
            }
            let mut y = T::load_mixed::<V>(x.add(i)) * inverse;
            if WEIGHTED {
                y = T::round_number(y) * T::load_mixed(weight.add(i));
            }
            out.put_mixed(y, i);
            i += LANES;
        }
        if i < axis {
            let count = axis - i;
            let mut y = T::load_first::<V>(x.add(i), count) * inverse;
            if WEIGHTED {
                y = T::round(y) * T::load_first(weight.add(i), count);
            }
            out.put_first(y, i, count);
        }
    }
}
