//! `h = x + residual` and its RMS or layer normalisation, while each row of h is in the cache.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::layer_norm::{Affine, layer_norm_row};
use super::output::Output;
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
    let ResidualNorm { rows, axis, eps, centered, .. } = call;
    let sum = Output::<T>::new(call.sum.cast(), &[], rows * axis, axis);
    let norm = Output::<T>::new(call.norm.cast(), &[], rows * axis, axis);
    machine.pool.for_each(rows, 2 * axis, &|rows| {
        let kernel = Rows::<T> {
            x: x.get().cast(),
            residual: residual.get().cast(),
            affine: Affine { weight: weight.get().cast(), bias: bias.get().cast() },
            sum,
            norm,
            rows,
            axis,
            eps,
            centered,
        };
        // SAFETY: the caller's contract; the ranges of rows are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

/// Elements of a row that wait on the stack for their norm while the sum goes past the caches.
const KEPT: usize = 8192;

struct Rows<T> {
    x: *const T,
    residual: *const T,
    affine: Affine<T>,
    sum: Output<T>,
    norm: Output<T>,
    rows: Range<usize>,
    axis: usize,
    eps: f32,
    centered: bool,
}

impl<T: Float> Kernel for Rows<T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { affine, axis, eps, .. } = self;
        let mut kept = [const { MaybeUninit::<T>::uninit() }; KEPT];
        for row in self.rows {
            let at = row * axis;
            // SAFETY: the row lies within all four buffers.
            unsafe {
                let (x, residual) = (self.x.add(at), self.residual.add(at));
                let (mut sum, norm) = (self.sum.add(at), self.norm.add(at));
                let h = if sum.is_past_caches() && axis <= KEPT {
                    let h = kept.as_mut_ptr().cast();
                    add::<V, T, true>(x, residual, sum, h, axis);
                    h
                } else {
                    sum = Output::near(sum.to());
                    add::<V, T, false>(x, residual, sum, sum.to(), axis);
                    sum.to()
                };
                if self.centered {
                    layer_norm_row::<V, T>(h, affine, norm, axis, eps);
                } else {
                    rms_norm_row::<V, T>(h, affine.weight, norm, axis, eps);
                }
            }
        }
    }
}

/// With `KEEP` into `kept` too, for the norm to find it there; the row is whole blocks then.
#[inline(always)]
unsafe fn add<V: F32x16, T: Float, const KEEP: bool>(
    x: *const T,
    residual: *const T,
    sum: Output<T>,
    kept: *mut T,
    axis: usize,
) {
    let mut i = 0;
    // SAFETY: every access is within the row.
    unsafe {
        while i + LANES <= axis {
            let h = T::load::<V>(x.add(i)) + T::load(residual.add(i));
            sum.put(h, i);
            if KEEP {
                T::store(h, kept.add(i));
            }
            i += LANES;
        }
        if i < axis {
            let count = axis - i;
            let lanes = T::load_first::<V>(x.add(i), count);
            sum.put_first(lanes + T::load_first(residual.add(i), count), i, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{Bf16, F16};
    use crate::testing::*;
    use crate::{layer_norm, rms_norm};

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
