//! Caps and masks scores before the softmax, and computes the exponentials of the softmax.

use super::{Attention, MASKED, Mask, View};
use crate::element::Float;
use crate::math::{exp_nonpositive, exp_nonpositive_short};
use crate::simd::{F32x16, LANES};

/// Computes e^x, for x <= 0, to the precision of the element type.
#[inline(always)]
pub fn exponential<V: F32x16, T: Float>(x: V) -> V {
    exponential_of(size_of::<T>() < size_of::<f32>(), x)
}

/// Computes e^x, for x <= 0, to the precision of f32. With `short`, the precision is enough for a
/// type with a significand of at most eleven bits.
#[inline(always)]
pub fn exponential_of<V: F32x16>(short: bool, x: V) -> V {
    if short { exp_nonpositive_short(x) } else { exp_nonpositive(x) }
}

/// Computes [`exponential`] of a single number.
#[inline(always)]
pub fn factor<V: F32x16, T: Float>(x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: the array has sixteen lanes.
    unsafe { exponential::<V, T>(V::splat(x)).store(lanes.as_mut_ptr()) };
    lanes[0]
}

/// Computes `cap * tanh(score / cap)` of full blocks in place.
///
/// # Safety
/// `scores` holds `count` floats, a multiple of sixteen.
#[inline(always)]
pub unsafe fn cap<V: F32x16>(scores: *mut f32, count: usize, cap: f32) {
    let inverse = V::splat(1.0 / cap);
    for at in (0..count).step_by(LANES) {
        // SAFETY: the caller's contract.
        unsafe {
            let y = V::load(scores.add(at)) * inverse;
            // tanh|y| = (1 - e) / (1 + e) with e = exp(-2|y|). The cancellation in 1 - e costs one
            // ulp of 1, times the cap.
            let e = exp_nonpositive(y.abs() * V::splat(-2.0));
            let (mut parts, mut signs) = ([0.0f32; LANES], [0.0f32; LANES]);
            e.store(parts.as_mut_ptr());
            y.store(signs.as_mut_ptr());
            for (part, sign) in parts.iter_mut().zip(signs) {
                *part = (cap * (1.0 - *part) / (1.0 + *part)).copysign(sign);
            }
            V::load(parts.as_ptr()).store(scores.add(at));
        }
    }
}

impl Attention {
    /// Caps and masks the scores of one row with keys `first..first + count`.
    ///
    /// # Safety
    /// `scores` holds `count` floats rounded up to full blocks; the mask covers the call.
    #[inline(always)]
    pub(super) unsafe fn finish<V: F32x16, T: Float>(
        &self,
        scores: *mut f32,
        (batch, head, query): (usize, usize, usize),
        (first, count): (usize, usize),
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            if self.soft_cap > 0.0 {
                cap::<V>(scores, count.next_multiple_of(LANES), self.soft_cap);
            }
            self.mask_row::<T>(scores, (batch, head, query), (first, count), 1);
        }
        let (start, end) = self.visible(query);
        if start > first || end < first + count {
            for i in 0..count {
                if first + i < start || first + i >= end {
                    // SAFETY: the index is within the row.
                    unsafe { *scores.add(i) = MASKED };
                }
            }
        }
    }

    /// Applies only the mask to the scores of one row, which are `pitch` apart.
    ///
    /// # Safety
    /// The contract of [`Attention::finish`] holds.
    #[inline(always)]
    pub(super) unsafe fn mask_row<T: Float>(
        &self,
        scores: *mut f32,
        (batch, head, query): (usize, usize, usize),
        (first, count): (usize, usize),
        pitch: usize,
    ) {
        let from = |view: &View| first as isize * view.strides[3];
        // SAFETY: the caller's contract.
        unsafe {
            match &self.mask {
                Mask::None => {}
                Mask::Bool(view) => {
                    let row = view.at::<u8>(batch, head, query).wrapping_offset(from(view));
                    for i in 0..count {
                        if *row.wrapping_offset(i as isize * view.strides[3]) == 0 {
                            *scores.add(i * pitch) = MASKED;
                        }
                    }
                }
                Mask::Additive(view) => {
                    let row = view.at::<T>(batch, head, query).wrapping_offset(from(view));
                    for i in 0..count {
                        let term = T::to_float(*row.wrapping_offset(i as isize * view.strides[3]));
                        *scores.add(i * pitch) += term;
                    }
                }
            }
        }
    }
}
