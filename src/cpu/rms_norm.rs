//! RMS normalisation: `x / sqrt(mean(x²) + eps) * weight`, row by row.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::simd::{F32x16, Kernel, LANES};
use super::{Machine, Shared};

/// Rounds as MLX's composition does: f32 up to the normalised value, which becomes the element
/// type before the weight multiplies it.
///
/// # Safety
/// `x` and `out` hold `rows * axis` elements, `weight` holds `axis` or is null, all aligned to
/// the element. `out` is `x` itself or overlaps nothing.
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
    // SAFETY: the caller's contract, and the machine is this one.
    with_element!(element, T => unsafe {
        rms_norm_on::<T>(machine, x.cast(), weight.cast(), out.cast(), rows, axis, eps)
    })
}

unsafe fn rms_norm_on<T: Float>(
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
    let (x, weight, out) = (Shared(x.cast_mut()), Shared(weight.cast_mut()), Shared(out));
    machine.pool.for_each(rows, axis, &|rows| {
        let kernel = RmsNorm { x: x.get(), weight: weight.get(), out: out.get(), rows, axis, eps };
        // SAFETY: the caller's contract; the ranges of rows are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

struct RmsNorm<T> {
    x: *const T,
    weight: *const T,
    out: *mut T,
    rows: Range<usize>,
    axis: usize,
    eps: f32,
}

impl<T: Float> Kernel for RmsNorm<T> {
    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        // MLX multiplies the sum by this rounded reciprocal.
        let reciprocal = (1.0 / self.axis as f64) as f32;
        for row in self.rows {
            // SAFETY: the row lies within both buffers.
            unsafe {
                let x = self.x.add(row * self.axis);
                let out = self.out.add(row * self.axis);
                let mean = sum_of_squares::<V, T>(x, self.axis) * reciprocal;
                let inverse = V::splat(1.0 / (mean + self.eps).sqrt());
                if self.weight.is_null() {
                    normalize::<V, T, false>(x, self.weight, out, self.axis, inverse);
                } else {
                    normalize::<V, T, true>(x, self.weight, out, self.axis, inverse);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn sum_of_squares<V: F32x16, T: Float>(x: *const T, axis: usize) -> f32 {
    // Four sums hide the additions' latency.
    let mut sums = [V::splat(0.0); 4];
    let mut i = 0;
    // SAFETY: every access is within the row.
    unsafe {
        while i + 4 * LANES <= axis {
            for (block, sum) in sums.iter_mut().enumerate() {
                let lanes: V = T::load(x.add(i + block * LANES));
                *sum = *sum + lanes * lanes;
            }
            i += 4 * LANES;
        }
        while i + LANES <= axis {
            let lanes: V = T::load(x.add(i));
            sums[0] = sums[0] + lanes * lanes;
            i += LANES;
        }
        if i < axis {
            let lanes: V = T::load_first(x.add(i), axis - i);
            sums[1] = sums[1] + lanes * lanes;
        }
    }
    ((sums[0] + sums[1]) + (sums[2] + sums[3])).reduce_add()
}

#[inline(always)]
unsafe fn normalize<V: F32x16, T: Float, const WEIGHTED: bool>(
    x: *const T,
    weight: *const T,
    out: *mut T,
    axis: usize,
    inverse: V,
) {
    let mut i = 0;
    // SAFETY: every access is within the row, and reads come before the write to their place.
    unsafe {
        while i + LANES <= axis {
            let mut y = T::load::<V>(x.add(i)) * inverse;
            if WEIGHTED {
                y = T::round(y) * T::load(weight.add(i));
            }
            T::store(y, out.add(i));
            i += LANES;
        }
        if i < axis {
            let count = axis - i;
            let mut y = T::load_first::<V>(x.add(i), count) * inverse;
            if WEIGHTED {
                y = T::round(y) * T::load_first(weight.add(i), count);
            }
            T::store_first(y, out.add(i), count);
        }
    }
}
