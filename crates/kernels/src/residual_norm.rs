//! Computes `h = x + residual` and its RMS or layer normalization. Each row is normalized while it
//! is in the cache.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::layer_norm::{Affine, layer_norm_row};
use super::output::Output;
use super::rms_norm::rms_norm_row;
use super::simd::{F32x16, Kernel, LANES};
use super::{Machine, Shared};

/// The untyped buffers of a call: `rows * axis` elements each, except weight and bias, which have
/// `axis` elements or are null.
#[derive(Clone, Copy)]
#[repr(C)]
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
    /// Whether to apply layer normalization; otherwise RMS normalization, which has no bias.
    pub centered: bool,
}

/// Rounds h to the element type, then applies `rms_norm` or `layer_norm` to it.
///
/// # Safety
/// The buffers are as [`ResidualNorm`] describes, and aligned to the element; `sum` and `norm` do
/// not overlap any other buffer.
pub unsafe fn residual_norm(element: Element, call: ResidualNorm) {
    let machine = Machine::current();
    // SAFETY: the caller's contract; this CPU has the instruction set of `machine`.
    with_element!(element, T => unsafe { residual_norm_on::<T>(machine, call) })
}

pub unsafe fn residual_norm_on<T: Float>(machine: Machine, call: ResidualNorm) {
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

/// If the stores of the sum bypass the caches, rows of at most this length are also kept on the
/// stack, where the norm reads them.
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
                let h = if !V::SMALL && sum.is_past_caches() && axis <= KEPT {
                    let h = kept.as_mut_ptr().cast();
                    add::<V, T, true>(x, residual, sum, h, axis);
                    h
                } else {
                    sum = Output::near(sum.to());
                    add::<V, T, false>(x, residual, sum, sum.to(), axis);
                    sum.to()
                };
                let next = [x.wrapping_add(axis), residual.wrapping_add(axis)];
                if self.centered {
                    layer_norm_row::<V, T, 2>(h, affine, norm, axis, eps, next);
                } else {
                    rms_norm_row::<V, T, 2>(h, affine.weight, norm, axis, eps, next);
                }
            }
        }
    }
}

/// Writes `x + residual` to `sum`. With `KEEP`, the row consists of full blocks, and the sum is
/// also written to `kept`, from which the norm reads it.
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
            let h = T::load_mixed::<V>(x.add(i)) + T::load_mixed(residual.add(i));
            sum.put_mixed(h, i);
            if KEEP {
                T::store_mixed(h, kept.add(i));
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
