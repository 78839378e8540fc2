//! `h = x + residual` and its RMS or layer normalisation, while each row of h is in the cache.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::layer_norm::{Affine, layer_norm_row};
use super::rms_norm::rms_norm_row;
use super::simd::{F32x16, Kernel, LANES};
use super::{Machine, Shared};

/// The untyped buffers of a call: `rows * axis` elements each, but `axis` in weight and bias,
/// which may be null.
#[derive(Clone, Copy)]
pub struct ResidualNorm {
    pub x: *const u8,
    pub residual: *const u8,
    pub weight: *const u8,
    pub bias: *const u8,
    pub sum: *mut u8,
    pub norm: *mut u8,
    pub rows: usize,
    pub axis: usize,
    pub eps: f32,
    /// Layer normalisation, else RMS, which has no bias.
    pub centered: bool,
}

/// Rounds h to the element type, then does to it what `rms_norm` or `layer_norm` would.
///
/// # Safety
/// The buffers hold what [`ResidualNorm`] says, aligned to the element; `sum` and `norm`
/// overlap nothing.
pub unsafe fn residual_norm(element: Element, call: ResidualNorm) {
    let machine = Machine::current();
    // SAFETY: the caller's contract, and the machine is this one.
    with_element!(element, T => unsafe { residual_norm_on::<T>(machine, call) })
}

unsafe fn residual_norm_on<T: Float>(machine: Machine, call: ResidualNorm) {
    if call.axis == 0 {
        return;
    }
    let (x, residual) = (Shared(call.x.cast_mut()), Shared(call.residual.cast_mut()));
    let (weight, bias) = (Shared(call.weight.cast_mut()), Shared(call.bias.cast_mut()));
    let (sum, norm) = (Shared(call.sum), Shared(call.norm));
    let ResidualNorm { rows, axis, eps, centered, .. } = call;
    machine.pool.for_each(rows, 2 * axis, &|rows| {
        let kernel = Rows::<T> {
            x: x.get().cast(),
            residual: residual.get().cast(),
            affine: Affine { weight: weight.get().cast(), bias: bias.get().cast() },
            sum: sum.get().cast(),
            norm: norm.get().cast(),
            rows,
            axis,
            eps,
            centered,
        };
        // SAFETY: the caller's contract; the ranges of rows are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

struct Rows<T> {
    x: *const T,
    residual: *const T,
    affine: Affine<T>,
    sum: *mut T,
    norm: *mut T,
    rows: Range<usize>,
    axis: usize,
    eps: f32,
    centered: bool,
}

impl<T: Float> Kernel for Rows<T> {
    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { affine, axis, eps, .. } = self;
        for row in self.rows {
            let at = row * axis;
            // SAFETY: the row lies within all four buffers.
            unsafe {
                let (sum, norm) = (self.sum.add(at), self.norm.add(at));
                add::<V, T>(self.x.add(at), self.residual.add(at), sum, axis);
                if self.centered {
                    layer_norm_row::<V, T>(sum, affine, norm, axis, eps);
                } else {
                    rms_norm_row::<V, T>(sum, affine.weight, norm, axis, eps);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn add<V: F32x16, T: Float>(x: *const T, residual: *const T, sum: *mut T, axis: usize) {
    let mut i = 0;
    // SAFETY: every access is within the row.
    unsafe {
        while i + LANES <= axis {
            T::store(T::load::<V>(x.add(i)) + T::load(residual.add(i)), sum.add(i));
            i += LANES;
        }
        if i < axis {
            let count = axis - i;
            let lanes = T::load_first::<V>(x.add(i), count);
            T::store_first(lanes + T::load_first(residual.add(i), count), sum.add(i), count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::element::{Bf16, F16};
    use crate::cpu::testing::*;
    use crate::cpu::{layer_norm, rms_norm};

    fn run<T: Sample>(
        on: Machine,
        x: &[T],
        residual: &[T],
        (weight, bias): (&[T], &[T]),
        axis: usize,
        centered: bool,
    ) -> (Vec<T>, Vec<T>) {
        let mut outputs = (vec![T::default(); x.len()], vec![T::default(); x.len()]);
        let pointer = |v: &[T]| if v.is_empty() { std::ptr::null() } else { v.as_ptr().cast() };
        let call = ResidualNorm {
            x: x.as_ptr().cast(),
            residual: residual.as_ptr().cast(),
            weight: pointer(weight),
            bias: pointer(bias),
            sum: outputs.0.as_mut_ptr().cast(),
            norm: outputs.1.as_mut_ptr().cast(),
            rows: x.len().checked_div(axis).unwrap_or(3),
            axis,
            eps: 1e-5,
            centered,
        };
        // SAFETY: the buffers hold rows * axis and axis elements.
        unsafe { residual_norm_on::<T>(on, call) };
        outputs
    }

    /// The sum is one rounded addition, and the norm that of the kernel of its own, to the bit.
    fn shapes<T: Sample>(element: Element) {
        for axis in AXES {
            for rows in [0, 1, 3, 67] {
                if rows * axis > 300_000 {
                    continue;
                }
                let x = values::<T>(rows * axis, 3.0);
                let residual: Vec<T> = values::<T>(rows * axis + 1, 3.0).split_off(1);
                let (weight, bias) = (values::<T>(axis, 2.0), values::<T>(axis + 1, 2.0));
                let bias = &bias[..axis];
                let sums: Vec<T> = std::iter::zip(&x, &residual)
                    .map(|(a, b)| T::from_f32(a.to_f32() + b.to_f32()))
                    .collect();
                for (affine, centered) in [
                    ((&[][..], &[][..]), false),
                    ((&weight[..], &[]), false),
                    ((&[], &[]), true),
                    ((&weight, bias), true),
                ] {
                    let mut want = vec![T::default(); x.len()];
                    let pointer =
                        |v: &[T]| if v.is_empty() { std::ptr::null() } else { v.as_ptr().cast() };
                    let (w, b) = (pointer(affine.0), pointer(affine.1));
                    let (from, to) = (sums.as_ptr().cast(), want.as_mut_ptr().cast());
                    // SAFETY: the buffers hold rows * axis and axis elements.
                    unsafe {
                        if centered {
                            layer_norm(element, from, w, b, to, rows, axis, 1e-5);
                        } else {
                            rms_norm(element, from, w, to, rows, axis, 1e-5);
                        }
                    }
                    for machine in machines() {
                        let (sum, norm) = run(machine, &x, &residual, affine, axis, centered);
                        assert_same(&sum, &sums, "sum");
                        assert_same(&norm, &want, "norm");
                    }
                }
            }
        }
    }

    #[test]
    fn shapes_in_f32() {
        shapes::<f32>(Element::F32);
    }

    #[test]
    fn shapes_in_f16() {
        shapes::<F16>(Element::F16);
    }

    #[test]
    fn shapes_in_bf16() {
        shapes::<Bf16>(Element::BF16);
    }
}
