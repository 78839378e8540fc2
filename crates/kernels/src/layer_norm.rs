//! Layer normalization: `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, row by row.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::fold::{Sum, fold_row};
use super::output::Output;
use super::simd::{F32x16, Kernel, LANES, prefetch_block};
use super::{Machine, Shared};

/// Normalizes each row, and rounds where MLX's composition of ops rounds. All steps up to the
/// normalized value are in f32. The normalized value is rounded to the element type before it is
/// multiplied by the weight, and the product is rounded before the bias is added.
///
/// # Safety
/// `x` and `out` hold `rows * axis` elements, `weight` and `bias` each hold `axis` or are null,
/// all aligned to the element. `out` is `x` itself or overlaps nothing.
#[expect(clippy::too_many_arguments, reason = "buffers and extents of one call")]
pub unsafe fn layer_norm(
    element: Element,
    x: *const u8,
    weight: *const u8,
    bias: *const u8,
    out: *mut u8,
    rows: usize,
    axis: usize,
    eps: f32,
) {
    let machine = Machine::current();
    // SAFETY: the caller's contract; this CPU has the instruction set of `machine`.
    with_element!(element, T => unsafe {
        let affine = Affine::<T> { weight: weight.cast(), bias: bias.cast() };
        layer_norm_on(machine, x.cast(), affine, out.cast(), rows, axis, eps)
    })
}

/// The weight and bias applied to a normalized row; either pointer may be null.
pub struct Affine<T> {
    pub weight: *const T,
    pub bias: *const T,
}

impl<T> Clone for Affine<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Affine<T> {}

// SAFETY: the pointers are only read.
unsafe impl<T> Sync for Affine<T> {}

pub unsafe fn layer_norm_on<T: Float>(
    machine: Machine,
    x: *const T,
    affine: Affine<T>,
    out: *mut T,
    rows: usize,
    axis: usize,
    eps: f32,
) {
    if axis == 0 {
        return;
    }
    let out = Output::new(out, &[x], rows * axis, axis);
    let (x, affine) = (Shared(x.cast_mut()), &affine);
    machine.pool.for_each(rows, axis + axis / 2, &|rows| {
        let kernel = LayerNorm { x: x.get(), affine: *affine, out, rows, axis, eps };
        // SAFETY: the caller's contract; the ranges of rows are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

struct LayerNorm<T> {
    x: *const T,
    affine: Affine<T>,
    out: Output<T>,
    rows: Range<usize>,
    axis: usize,
    eps: f32,
}

impl<T: Float> Kernel for LayerNorm<T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for row in self.rows {
            let at = row * self.axis;
            // SAFETY: the row lies within both buffers.
            unsafe {
                let (x, out) = (self.x.add(at), self.out.add(at));
                let next = [x.wrapping_add(self.axis)];
                layer_norm_row::<V, T, 1>(x, self.affine, out, self.axis, self.eps, next);
            }
        }
    }
}

/// Normalizes one row of `axis >= 1` elements; `out` may be `x`. Prefetches the rows `next`, which
/// the caller reads next.
#[inline(always)]
pub(super) unsafe fn layer_norm_row<V: F32x16, T: Float, const NEXT: usize>(
    x: *const T,
    affine: Affine<T>,
    out: Output<T>,
    axis: usize,
    eps: f32,
    next: [*const T; NEXT],
) {
    // MLX multiplies sums by this rounded reciprocal.
    let reciprocal = (1.0 / axis as f64) as f32;
    // SAFETY: the caller passes a readable row, weight and bias.
    unsafe {
        let mean = V::splat(fold_row::<V, T, Sum>(Sum, x, axis) * reciprocal);
        let variance = squares_about::<V, T>(mean, x, axis) * reciprocal;
        let inverse = 1.0 / (variance + eps).sqrt();
        // Replace any NaN by the default NaN: `eps` may be a NaN that `round_number` does not take.
        let inverse = V::splat(if inverse.is_nan() { f32::NAN } else { inverse });
        let scale = (mean, inverse);
        match (affine.weight.is_null(), affine.bias.is_null()) {
            (true, true) => {
                normalize::<V, T, NEXT, false, false>(x, affine, out, axis, scale, next)
            }
            (true, false) => {
                normalize::<V, T, NEXT, false, true>(x, affine, out, axis, scale, next)
            }
            (false, true) => {
                normalize::<V, T, NEXT, true, false>(x, affine, out, axis, scale, next)
            }
            (false, false) => {
                normalize::<V, T, NEXT, true, true>(x, affine, out, axis, scale, next)
            }
        }
    }
}

/// The sum of (x - mean)^2 over a row.
#[inline(always)]
unsafe fn squares_about<V: F32x16, T: Float>(mean: V, x: *const T, axis: usize) -> f32 {
    // Four sums hide the latency of additions.
    let mut sums = [V::splat(0.0); 4];
    let mut i = 0;
    // SAFETY: every access is within the row.
    unsafe {
        while i + 4 * LANES <= axis {
            for (block, sum) in sums.iter_mut().enumerate() {
                let lanes = T::load_mixed::<V>(x.add(i + block * LANES)) - mean;
                *sum = *sum + lanes * lanes;
            }
            i += 4 * LANES;
        }
        while i + LANES <= axis {
            let lanes = T::load_mixed::<V>(x.add(i)) - mean;
            sums[0] = sums[0] + lanes * lanes;
            i += LANES;
        }
        for sum in &mut sums {
            *sum = T::ordered(*sum);
        }
        if i < axis {
            let lanes = T::load_first::<V>(x.add(i), axis - i) - mean;
            let lanes = lanes.keep_first(axis - i, 0.0);
            sums[1] = sums[1] + lanes * lanes;
        }
    }
    ((sums[0] + sums[1]) + (sums[2] + sums[3])).reduce_add()
}

#[inline(always)]
unsafe fn normalize<
    V: F32x16,
    T: Float,
    const NEXT: usize,
    const WEIGHTED: bool,
    const BIASED: bool,
>(
    x: *const T,
    Affine { weight, bias }: Affine<T>,
    out: Output<T>,
    axis: usize,
    (mean, inverse): (V, V),
    next: [*const T; NEXT],
) {
    let mut i = 0;
    // SAFETY: every access is within the row, and elements are read before they are overwritten.
    unsafe {
        while i + LANES <= axis {
            for row in next {
                prefetch_block(row.wrapping_add(i));
            }
            let mut y = (T::load_mixed::<V>(x.add(i)) - mean) * inverse;
            if WEIGHTED {
                y = T::round_number(y) * T::load_mixed(weight.add(i));
            }
            if BIASED {
                y = T::round_number(y) + T::load_mixed(bias.add(i));
            }
            out.put_mixed(y, i);
            i += LANES;
        }
        if i < axis {
            let count = axis - i;
            let mut y = (T::load_first::<V>(x.add(i), count) - mean) * inverse;
            if WEIGHTED {
                y = T::round(y) * T::load_first(weight.add(i), count);
            }
            if BIASED {
                y = T::round(y) + T::load_first(bias.add(i), count);
            }
            out.put_first(y, i, count);
        }
    }
}
