//! Softmax over the last axis. Every element type is accumulated in f32.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::math::{exp_nonpositive, exp_nonpositive_short, raised_exponential};
use super::output::Output;
use super::simd::{F32x16, Kernel, LANES, prefetch_block};
use super::{Machine, Shared};

/// Computes MLX's `precise` softmax. A row that contains a NaN or +inf, or only -inf, becomes all
/// NaN.
///
/// # Safety
/// `x` and `out` hold `rows * axis` elements, aligned for the element type. `out` is `x` itself or
/// overlaps nothing.
pub unsafe fn softmax(element: Element, x: *const u8, out: *mut u8, rows: usize, axis: usize) {
    let machine = Machine::current();
    // SAFETY: the caller upholds the contract; this machine supports `machine.level`.
    with_element!(element, T => unsafe {
        softmax_on::<T>(machine, x.cast(), out.cast(), rows, axis)
    })
}

pub unsafe fn softmax_on<T: Float>(
    machine: Machine,
    x: *const T,
    out: *mut T,
    rows: usize,
    axis: usize,
) {
    if axis == 0 {
        return;
    }
    // With f32, the kernel stores the exponentials in the output until it knows their sum. So the
    // output must stay in the caches.
    let out = match T::as_f32(x) {
        Some(_) => Output::near(out),
        None => Output::new(out, &[x], rows * axis, axis),
    };
    let x = Shared(x.cast_mut());
    machine.pool.for_each(rows, 2 * axis, &|rows| {
        let kernel = Softmax { x: x.get(), out, rows, axis };
        // SAFETY: the caller upholds the contract; the ranges of rows are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

struct Softmax<T> {
    x: *const T,
    out: Output<T>,
    rows: Range<usize>,
    axis: usize,
}

/// The longest row whose f32 exponentials are stored on the stack. In longer rows of 16-bit types,
/// the kernel computes the exponentials twice.
const KEPT: usize = 4096;

impl<T: Float> Kernel for Softmax<T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let mut kept = [const { std::mem::MaybeUninit::<f32>::uninit() }; KEPT];
        for row in self.rows {
            // SAFETY: the row lies within both buffers, and each function called here stays within
            // the row.
            unsafe {
                let x = self.x.add(row * self.axis);
                let out = self.out.add(row * self.axis);
                let max = V::splat(row_max::<V, T>(x, self.axis));
                // An output of f32 has room for the exponentials.
                let keep = if size_of::<T>() == size_of::<f32>() {
                    out.to().cast()
                } else {
                    kept.as_mut_ptr().cast::<f32>()
                };
                if size_of::<T>() == size_of::<f32>() || self.axis <= KEPT {
                    let sum = exponentials::<V, T, true>(x, self.axis, max, keep);
                    scale_kept::<V, T>(keep, out, self.axis, V::splat(1.0 / sum));
                } else {
                    let sum = exponentials::<V, T, false>(x, self.axis, max, keep);
                    scale_again::<V, T>(x, out, self.axis, max, V::splat(1.0 / sum));
                }
            }
        }
    }
}

/// Returns the largest element. It may miss a NaN, but then the exponential of the NaN makes the
/// sum NaN.
#[inline(always)]
unsafe fn row_max<V: F32x16, T: Float>(x: *const T, axis: usize) -> f32 {
    let mut max = [V::splat(f32::NEG_INFINITY); 4];
    let mut i = 0;
    // SAFETY: every access is within the row.
    unsafe {
        while i + 4 * LANES <= axis {
            for (block, max) in max.iter_mut().enumerate() {
                *max = T::load_mixed::<V>(x.add(i + block * LANES)).max(*max);
            }
            i += 4 * LANES;
        }
        while i + LANES <= axis {
            max[0] = T::load_mixed::<V>(x.add(i)).max(max[0]);
            i += LANES;
        }
        for max in &mut max {
            *max = T::ordered(*max);
        }
        if i < axis {
            let lanes: V = T::load_first(x.add(i), axis - i);
            max[1] = lanes.keep_first(axis - i, f32::NEG_INFINITY).max(max[1]);
        }
    }
    max[0].max(max[1]).max(max[2].max(max[3])).reduce_max()
}

/// Returns e^x for x <= 0, to the precision of the element type.
#[inline(always)]
pub(super) fn exponential<V: F32x16, T: Float>(x: V) -> V {
    if size_of::<T>() == size_of::<f32>() { exp_nonpositive(x) } else { exp_nonpositive_short(x) }
}

/// Returns the sum of [`raised_exponential`] of `x - max`. With `KEEP`, also writes the terms to
/// `keep`, which may be `x`. In full blocks, the terms have the order of [`Float::load_mixed`].
#[inline(always)]
unsafe fn exponentials<V: F32x16, T: Float, const KEEP: bool>(
    x: *const T,
    axis: usize,
    max: V,
    keep: *mut f32,
) -> f32 {
    let mut sum = V::splat(0.0);
    let mut i = 0;
    // SAFETY: every access is within the row, and each block is read before it is overwritten.
    unsafe {
        while i + LANES <= axis {
            prefetch_block(x.wrapping_add(axis + i)); // the next row
            let lanes = raised_exponential::<V, T>(T::load_mixed::<V>(x.add(i)) - max);
            if KEEP {
                lanes.store(keep.add(i));
            }
            sum = sum + lanes;
            i += LANES;
        }
        sum = T::ordered(sum);
        if i < axis {
            let count = axis - i;
            let lanes = raised_exponential::<V, T>(T::load_first::<V>(x.add(i), count) - max);
            if KEEP {
                lanes.store_first(keep.add(i), count);
            }
            sum = sum + lanes.keep_first(count, 0.0);
        }
    }
    sum.reduce_add()
}

/// Writes `kept * scale` to `out`, which may be `kept`. `kept` holds the terms in the order in
/// which [`exponentials`] wrote them.
#[inline(always)]
pub(super) unsafe fn scale_kept<V: F32x16, T: Float>(
    kept: *const f32,
    out: Output<T>,
    axis: usize,
    scale: V,
) {
    let mut i = 0;
    // SAFETY: every access is within the row, and each block is read before it is overwritten.
    unsafe {
        while i + LANES <= axis {
            out.put_mixed(V::load(kept.add(i)) * scale, i);
            i += LANES;
        }
        if i < axis {
            out.put_first(V::load_first(kept.add(i), axis - i) * scale, i, axis - i);
        }
    }
}

/// Computes the exponentials again, and writes their products with `scale` to `out`, which may be
/// `x`.
#[inline(always)]
unsafe fn scale_again<V: F32x16, T: Float>(
    x: *const T,
    out: Output<T>,
    axis: usize,
    max: V,
    scale: V,
) {
    let mut i = 0;
    // SAFETY: every access is within the row, and each block is read before it is overwritten.
    unsafe {
        while i + LANES <= axis {
            let lanes = raised_exponential::<V, T>(T::load_mixed::<V>(x.add(i)) - max);
            out.put_mixed(lanes * scale, i);
            i += LANES;
        }
        if i < axis {
            let count = axis - i;
            let lanes = raised_exponential::<V, T>(T::load_first::<V>(x.add(i), count) - max);
            out.put_first(lanes * scale, i, count);
        }
    }
}
