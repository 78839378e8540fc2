//! RMS normalisation: `x / sqrt(mean(x²) + eps) * weight`, row by row.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::fold::{Squares, fold_row};
use super::output::Output;
use super::simd::{F32x16, Kernel, LANES, prefetch_block};
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

/// # Safety
/// As [`rms_norm`]'s.
pub(super) unsafe fn rms_norm_on<T: Float>(
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
        // SAFETY: the caller's contract; the ranges of rows are disjoint.
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
                rms_norm_row::<V, T>(x, self.weight, out, self.axis, self.eps);
            }
        }
    }
}

/// `1 / sqrt(mean(x²) + eps)`, for every kernel that normalises.
///
/// # Safety
/// `x` is readable for `axis` elements.
#[inline(always)]
pub(super) unsafe fn inverse_rms<V: F32x16, T: Float>(x: *const T, axis: usize, eps: f32) -> f32 {
    // MLX multiplies the sum by this rounded reciprocal.
    let reciprocal = (1.0 / axis as f64) as f32;
    // SAFETY: the caller's contract.
    let mean = unsafe { fold_row::<V, T, Squares>(Squares, x, axis) } * reciprocal;
    1.0 / (mean + eps).sqrt()
}

/// One row of `axis >= 1` elements; `weight` may be null, and `out` may be `x`.
#[inline(always)]
pub(super) unsafe fn rms_norm_row<V: F32x16, T: Float>(
    x: *const T,
    weight: *const T,
    out: Output<T>,
    axis: usize,
    eps: f32,
) {
    // SAFETY: the caller's row and weight.
    unsafe {
        let inverse = V::splat(inverse_rms::<V, T>(x, axis, eps));
        if weight.is_null() {
            normalize::<V, T, false>(x, weight, out, axis, inverse);
        } else {
            normalize::<V, T, true>(x, weight, out, axis, inverse);
        }
    }
}

#[inline(always)]
unsafe fn normalize<V: F32x16, T: Float, const WEIGHTED: bool>(
    x: *const T,
    weight: *const T,
    out: Output<T>,
    axis: usize,
    inverse: V,
) {
    let mut i = 0;
    // SAFETY: every access is within the row, and reads come before the write to their place.
    unsafe {
        while i + LANES <= axis {
            prefetch_block(x.wrapping_add(axis + i)); // of the next row
            let mut y = T::load::<V>(x.add(i)) * inverse;
            if WEIGHTED {
                y = T::round(y) * T::load(weight.add(i));
            }
            out.put(y, i);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{Bf16, F16};
    use crate::testing::*;

    fn run<T: Sample>(on: Machine, x: &[T], w: Option<&[T]>, axis: usize, eps: f32) -> Vec<T> {
        let rows = x.len().checked_div(axis).unwrap_or(3);
        let mut out = vec![T::default(); x.len()];
        let w = w.map_or(std::ptr::null(), <[T]>::as_ptr);
        // SAFETY: the buffers hold rows * axis and axis elements.
        unsafe { rms_norm_on(on, x.as_ptr(), w, out.as_mut_ptr(), rows, axis, eps) };
        let mut place = x.to_vec();
        // SAFETY: as above, in place.
        unsafe { rms_norm_on(on, place.as_ptr(), w, place.as_mut_ptr(), rows, axis, eps) };
        assert_same(&place, &out, "in place");
        out
    }

    fn reference<T: Sample>(x: &[T], w: Option<&[T]>, axis: usize, eps: f64) -> Vec<f64> {
        let mut out = Vec::with_capacity(x.len());
        for row in x.chunks_exact(axis.max(1)) {
            let sum: f64 = row.iter().map(|v| f64::from(v.to_f32()).powi(2)).sum();
            let inverse = 1.0 / (sum / axis as f64 + eps).sqrt();
            out.extend(row.iter().enumerate().map(|(i, v)| {
                f64::from(v.to_f32()) * inverse * w.map_or(1.0, |w| f64::from(w[i].to_f32()))
            }));
        }
        out
    }

    fn shapes<T: Sample>() {
        for axis in AXES {
            for rows in ROWS {
                let (x, w) = (values::<T>(rows * axis, 3.0), values::<T>(axis, 2.0));
                for w in [None, Some(&w[..])] {
                    let expected = reference(&x, w, axis, 1e-5);
                    let first = run(machines()[0], &x, w, axis, 1e-5);
                    let relative = f64::from(T::EPSILON) * 1.01 + 2e-6;
                    assert_close(&first, &expected, relative, 1e-7, "rms_norm");
                    for machine in &machines()[1..] {
                        assert_same(&run(*machine, &x, w, axis, 1e-5), &first, "rms_norm");
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
    fn the_normalised_value_is_rounded_before_the_weight() {
        let (x, w) = (values::<F16>(100, 3.0), values::<F16>(100, 2.0));
        let bare = run(Machine::current(), &x, None, 100, 1e-5);
        let weighted = run(Machine::current(), &x, Some(&w), 100, 1e-5);
        for i in 0..100 {
            let expected = rounded::<F16>(bare[i].to_f32() * w[i].to_f32());
            assert_eq!(weighted[i].to_f32(), expected);
        }
    }

    #[test]
    fn extremes() {
        for machine in machines() {
            let norm = |x: &[f32]| run(machine, x, None, x.len(), 0.0);
            assert!(norm(&[1e30, 1.0, -2.0]).iter().all(|&v| v == 0.0));
            assert!(norm(&[f32::NAN, 1.0, 2.0]).iter().all(|v| v.is_nan()));
            let infinite = norm(&[f32::INFINITY, 1.0, -2.0]);
            assert!(infinite[0].is_nan() && infinite[1] == 0.0 && infinite[2] == 0.0);
            let large = vec![F16::from_f32(65504.0); 33];
            let out = run(machine, &large, None, 33, 1e-5);
            assert!(out.iter().all(|v| v.to_f32() == 1.0));
            let over = run(machine, &large, Some(&large), 33, 0.0);
            assert!(over.iter().all(|v| v.to_f32() >= 65504.0));
            let tiny = vec![F16::from_f32(6e-8); 33];
            assert!(run(machine, &tiny, None, 33, 0.0).iter().all(|v| v.to_f32() == 1.0));
        }
    }
}
