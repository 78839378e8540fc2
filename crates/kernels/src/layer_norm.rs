//! Layer normalisation: `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, row by row.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::fold::{Sum, fold_row};
use super::output::Output;
use super::simd::{F32x16, Kernel, LANES, prefetch_block};
use super::{Machine, Shared};

/// Rounds as MLX's composition does: f32 up to the normalised value, which becomes the element
/// type before the weight multiplies it, and so does the product before the bias is added.
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
    // SAFETY: the caller's contract, and the machine is this one.
    with_element!(element, T => unsafe {
        let affine = Affine::<T> { weight: weight.cast(), bias: bias.cast() };
        layer_norm_on(machine, x.cast(), affine, out.cast(), rows, axis, eps)
    })
}

/// What is done with a normalised row; either pointer may be null.
pub(super) struct Affine<T> {
    pub weight: *const T,
    pub bias: *const T,
}

impl<T> Clone for Affine<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Affine<T> {}

// SAFETY: read only.
unsafe impl<T> Sync for Affine<T> {}

unsafe fn layer_norm_on<T: Float>(
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
                layer_norm_row::<V, T>(x, self.affine, out, self.axis, self.eps);
            }
        }
    }
}

/// One row of `axis >= 1` elements; `out` may be `x`.
#[inline(always)]
pub(super) unsafe fn layer_norm_row<V: F32x16, T: Float>(
    x: *const T,
    affine: Affine<T>,
    out: Output<T>,
    axis: usize,
    eps: f32,
) {
    // MLX multiplies sums by this rounded reciprocal.
    let reciprocal = (1.0 / axis as f64) as f32;
    // SAFETY: the caller's row, weight and bias.
    unsafe {
        let mean = V::splat(fold_row::<V, T, Sum>(Sum, x, axis) * reciprocal);
        let variance = squares_about::<V, T>(mean, x, axis) * reciprocal;
        let inverse = V::splat(1.0 / (variance + eps).sqrt());
        match (affine.weight.is_null(), affine.bias.is_null()) {
            (true, true) => normalize::<V, T, false, false>(x, affine, out, axis, mean, inverse),
            (true, false) => normalize::<V, T, false, true>(x, affine, out, axis, mean, inverse),
            (false, true) => normalize::<V, T, true, false>(x, affine, out, axis, mean, inverse),
            (false, false) => normalize::<V, T, true, true>(x, affine, out, axis, mean, inverse),
        }
    }
}

/// The sum of (x - mean)^2 over a row.
#[inline(always)]
unsafe fn squares_about<V: F32x16, T: Float>(mean: V, x: *const T, axis: usize) -> f32 {
    // Four sums hide the additions' latency.
    let mut sums = [V::splat(0.0); 4];
    let mut i = 0;
    // SAFETY: every access is within the row.
    unsafe {
        while i + 4 * LANES <= axis {
            for (block, sum) in sums.iter_mut().enumerate() {
                let lanes = T::load::<V>(x.add(i + block * LANES)) - mean;
                *sum = *sum + lanes * lanes;
            }
            i += 4 * LANES;
        }
        while i + LANES <= axis {
            let lanes = T::load::<V>(x.add(i)) - mean;
            sums[0] = sums[0] + lanes * lanes;
            i += LANES;
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
unsafe fn normalize<V: F32x16, T: Float, const WEIGHTED: bool, const BIASED: bool>(
    x: *const T,
    Affine { weight, bias }: Affine<T>,
    out: Output<T>,
    axis: usize,
    mean: V,
    inverse: V,
) {
    let mut i = 0;
    // SAFETY: every access is within the row, and reads come before the write to their place.
    unsafe {
        while i + LANES <= axis {
            prefetch_block(x.wrapping_add(axis + i)); // of the next row
            let mut y = (T::load::<V>(x.add(i)) - mean) * inverse;
            if WEIGHTED {
                y = T::round(y) * T::load(weight.add(i));
            }
            if BIASED {
                y = T::round(y) + T::load(bias.add(i));
            }
            out.put(y, i);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{Bf16, F16};
    use crate::testing::*;

    type Optional<'a, T> = Option<&'a [T]>;

    fn pointer<T>(values: Optional<T>) -> *const T {
        values.map_or(std::ptr::null(), <[T]>::as_ptr)
    }

    fn run<T: Sample>(
        on: Machine,
        x: &[T],
        (w, b): (Optional<T>, Optional<T>),
        axis: usize,
        eps: f32,
    ) -> Vec<T> {
        let rows = x.len().checked_div(axis).unwrap_or(3);
        let mut out = vec![T::default(); x.len()];
        let affine = Affine { weight: pointer(w), bias: pointer(b) };
        // SAFETY: the buffers hold rows * axis and axis elements.
        unsafe { layer_norm_on(on, x.as_ptr(), affine, out.as_mut_ptr(), rows, axis, eps) };
        let mut place = x.to_vec();
        // SAFETY: as above, in place.
        unsafe { layer_norm_on(on, place.as_ptr(), affine, place.as_mut_ptr(), rows, axis, eps) };
        assert_same(&place, &out, "in place");
        out
    }

    fn wide<T: Sample>(values: &[T]) -> Vec<f64> {
        values.iter().map(|v| f64::from(v.to_f32())).collect()
    }

    fn reference<T: Sample>(
        x: &[T],
        (w, b): (Optional<T>, Optional<T>),
        axis: usize,
        eps: f64,
    ) -> Vec<f64> {
        let (w, b) = (w.map(wide), b.map(wide));
        let mut out = Vec::with_capacity(x.len());
        for row in wide(x).chunks_exact(axis.max(1)) {
            let mean = row.iter().sum::<f64>() / axis as f64;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / axis as f64;
            let inverse = 1.0 / (variance + eps).sqrt();
            out.extend(row.iter().enumerate().map(|(i, v)| {
                let scale = w.as_ref().map_or(1.0, |w| w[i]);
                (v - mean) * inverse * scale + b.as_ref().map_or(0.0, |b| b[i])
            }));
        }
        out
    }

    /// Values about a mean that is not zero.
    fn shifted<T: Sample>(count: usize, scale: f32) -> Vec<T> {
        values::<f32>(count, scale).into_iter().map(|v| T::from_f32(v + 1.0)).collect()
    }

    fn shapes<T: Sample>() {
        for axis in AXES {
            for rows in ROWS {
                if rows * axis > 300_000 {
                    continue;
                }
                let x = shifted::<T>(rows * axis, 3.0);
                let (w, b) = (values::<T>(axis, 2.0), values::<T>(axis + 1, 2.0));
                let (w, b) = (Some(&w[..]), Some(&b[..axis]));
                for affine in [(None, None), (w, None), (None, b), (w, b)] {
                    let expected = reference(&x, affine, axis, 1e-5);
                    let first = run(machines()[0], &x, affine, axis, 1e-5);
                    // Up to three roundings of values below 4 * 2 + 2, and as f32's own error
                    // that of the mean, which short rows divide by a small deviation.
                    let relative = f64::from(T::EPSILON) * 1.01 + 2e-6;
                    let absolute = 4.0 * f64::from(T::EPSILON) + 2e-5;
                    assert_close(&first, &expected, relative, absolute, "layer_norm");
                    for machine in &machines()[1..] {
                        assert_same(&run(*machine, &x, affine, axis, 1e-5), &first, "layer_norm");
                    }
                }
            }
        }
    }

    #[test]
    fn shapes_in_f32() {
        shapes::<f32>();
    }

    #[test]
    fn shapes_in_f16() {
        shapes::<F16>();
    }

    #[test]
    fn shapes_in_bf16() {
        shapes::<Bf16>();
    }

    #[test]
    fn each_step_is_rounded_before_the_next() {
        let x = shifted::<F16>(100, 3.0);
        let (w, b) = (values::<F16>(100, 2.0), values::<F16>(101, 2.0));
        let (w, b) = (Some(&w[..]), Some(&b[..100]));
        let on = Machine::current();
        let bare = run(on, &x, (None, None), 100, 1e-5);
        let both = run(on, &x, (w, b), 100, 1e-5);
        for i in 0..100 {
            let product = rounded::<F16>(bare[i].to_f32() * w.unwrap()[i].to_f32());
            assert_eq!(both[i].to_f32(), rounded::<F16>(product + b.unwrap()[i].to_f32()));
        }
    }

    #[test]
    fn extremes() {
        for machine in machines() {
            let norm = |x: &[f32]| run(machine, x, (None, None), x.len(), 1e-5);
            assert_eq!(norm(&[7.0]), [0.0]);
            assert!(norm(&[5.0; 40]).iter().all(|&v| v == 0.0));
            assert!(norm(&[f32::NAN, 1.0, 2.0]).iter().all(|v| v.is_nan()));
            assert!(norm(&[f32::INFINITY, 1.0, -2.0]).iter().all(|v| v.is_nan()));
            // The mean is subtracted before anything is squared.
            let offset: Vec<f32> = (0..64).map(|i| 1e6 + (i % 2) as f32).collect();
            let expected = reference(&offset, (None, None), 64, 1e-5);
            assert_close(&norm(&offset), &expected, 1e-5, 0.0, "offset");
            let large = vec![F16::from_f32(65504.0); 33];
            let out = run(machine, &large, (None, None), 33, 1e-5);
            assert!(out.iter().all(|v| v.to_f32() == 0.0));
        }
    }
}
