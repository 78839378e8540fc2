//! Softmax of scaled and masked scores over the last axis, accumulated in f32, and its gradient.
//!
//! With a causal or sliding-window mask, each query sees one range of keys, and the kernel reads
//! only these keys.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::output::Output;
use super::simd::{F32x16, Kernel, LANES, prefetch_block};
use super::{Machine, Shared};

mod masks;
mod normalize;

use masks::{Added, Hidden, NoMask, RowMask, Staged};
pub use masks::{Mask, MaskedSoftmaxShape};
use normalize::Normalize;

/// Computes `softmax(round(x * scale) + mask)` of each row. Scores that the causal mask, the window
/// or a bool mask hides are replaced by the type's lowest finite number, as in MLX's attention.
///
/// # Safety
/// `x` and `out` hold `rows * keys` elements, aligned to the element, and `out` is `x` itself or
/// overlaps nothing. `mask` is readable at all indices of its rows and keys.
pub unsafe fn masked_softmax(
    element: Element,
    x: *const u8,
    mask: Option<Mask>,
    out: *mut u8,
    shape: &MaskedSoftmaxShape,
    scale: f32,
) {
    let machine = Machine::current();
    // SAFETY: the caller's contract; this CPU has the instruction set of `machine`.
    with_element!(element, T => unsafe {
        masked_softmax_on::<T>(machine, x.cast(), mask, out.cast(), shape, scale)
    })
}

/// Computes `scale * y * (g - sum(y * g))` of each row, the gradient with respect to x, and zero
/// where the softmax hid a score. `y` is the result of [`masked_softmax`], and `g` its gradient.
///
/// # Safety
/// The contract of [`masked_softmax`] holds, for both inputs; a mask, if any, is boolean.
pub unsafe fn masked_softmax_grad(
    element: Element,
    [y, g]: [*const u8; 2],
    mask: Option<Mask>,
    out: *mut u8,
    shape: &MaskedSoftmaxShape,
    scale: f32,
) {
    let machine = Machine::current();
    // SAFETY: the caller's contract; this CPU has the instruction set of `machine`.
    with_element!(element, T => unsafe {
        grad_on::<T>(machine, [y.cast(), g.cast()], mask, out.cast(), shape, scale)
    })
}

pub unsafe fn masked_softmax_on<T: Float>(
    machine: Machine,
    x: *const T,
    mask: Option<Mask>,
    out: *mut T,
    shape: &MaskedSoftmaxShape,
    scale: f32,
) {
    // Replace any NaN by the default NaN, which `round_number` requires.
    let scale = if scale.is_nan() { f32::NAN } else { scale };
    // For f32 the output holds the exponentials until their sum is known, so it should stay in the
    // caches.
    let out = match T::as_f32(x) {
        Some(_) => Output::near(out),
        None => Output::new(out, &[x], shape.rows * shape.keys, shape.keys),
    };
    let x = Shared(x.cast_mut());
    machine.pool.for_each(shape.rows, 3 * shape.keys, &|rows| {
        let kernel = MaskedSoftmax { x: x.get(), mask, out, rows, shape, scale };
        // SAFETY: the caller's contract; the ranges of rows are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

pub unsafe fn grad_on<T: Float>(
    machine: Machine,
    [y, g]: [*const T; 2],
    mask: Option<Mask>,
    out: *mut T,
    shape: &MaskedSoftmaxShape,
    scale: f32,
) {
    // Replace any NaN by the default NaN, which `put_mixed` requires.
    let scale = if scale.is_nan() { f32::NAN } else { scale };
    let out = Output::new(out, &[y, g], shape.rows * shape.keys, shape.keys);
    let (y, g) = (Shared(y.cast_mut()), Shared(g.cast_mut()));
    machine.pool.for_each(shape.rows, 2 * shape.keys, &|rows| {
        let kernel = Grad { y: y.get(), g: g.get(), mask, out, rows, shape, scale };
        // SAFETY: the caller's contract; the ranges of rows are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

struct MaskedSoftmax<'a, T> {
    x: *const T,
    mask: Option<Mask<'a>>,
    out: Output<T>,
    rows: Range<usize>,
    shape: &'a MaskedSoftmaxShape,
    scale: f32,
}

/// The longest 16-bit row whose f32 exponentials are kept on the stack between the passes.
const KEPT: usize = 4096;

impl<T: Float> Kernel for MaskedSoftmax<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        // SAFETY: the caller's contract is enough for both branches.
        unsafe {
            if !V::SMALL && self.scale == 1.0 {
                self.scaled::<V, false>();
            } else {
                self.scaled::<V, true>();
            }
        }
    }
}

impl<T: Float> MaskedSoftmax<'_, T> {
    #[inline(always)]
    unsafe fn scaled<V: F32x16, const SCALED: bool>(self) {
        // SAFETY: the caller's contract; `additive` tells the type of the mask's elements.
        unsafe {
            match self.mask {
                None => self.each_row::<V, SCALED, _>(|_, _| NoMask),
                Some(mask) if mask.additive => {
                    let mut staged = Staged::<T>::new(mask);
                    self.each_row::<V, SCALED, _>(|row, keys| Added(staged.row(row, keys)));
                }
                Some(mask) => {
                    let mut staged = Staged::<u8>::new(mask);
                    self.each_row::<V, SCALED, _>(|row, keys| Hidden(staged.row(row, keys)));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn each_row<V: F32x16, const SCALED: bool, M: RowMask<T>>(
        &self,
        mut mask_of: impl FnMut(usize, Range<usize>) -> M,
    ) {
        let keys = self.shape.keys;
        let mut stack = [const { std::mem::MaybeUninit::<f32>::uninit() }; KEPT];
        let wide = size_of::<T>() == size_of::<f32>();
        let mut heap: Vec<f32> = Vec::with_capacity(if wide || keys <= KEPT { 0 } else { keys });
        for row in self.rows.clone() {
            let seen = self.shape.keys_of(row);
            let mask = mask_of(row, seen.clone());
            // SAFETY: `seen` lies within the row, which lies within both buffers. `kept` has room
            // for the scores, and an f32 output can hold the exponentials.
            unsafe {
                let out = self.out.add(row * keys);
                let visible = out.from(seen.start);
                let scores = Scores::<_, _, SCALED> {
                    x: self.x.add(row * keys + seen.start),
                    mask,
                    count: seen.len(),
                    scale: self.scale,
                };
                let kept = if wide {
                    visible.to().cast()
                } else if keys <= KEPT {
                    stack.as_mut_ptr().cast::<f32>()
                } else {
                    heap.as_mut_ptr()
                };
                let max = scores.keep::<V>(kept);
                let next = scores.x.wrapping_add(keys);
                V::part(Normalize { out, seen, keys, kept, max, next });
            }
        }
    }
}

/// The scores that one query sees.
struct Scores<T, M, const SCALED: bool> {
    x: *const T,
    mask: M,
    count: usize,
    scale: f32,
}

impl<T: Float, M: RowMask<T>, const SCALED: bool> Scores<T, M, SCALED> {
    /// Returns the scores `at..at + count` in the order of [`Float::load_mixed_block`]. If `count`
    /// is the constant sixteen, the compiler omits the code for tails.
    ///
    /// # Safety
    /// The scores are within the row.
    #[inline(always)]
    unsafe fn block<V: F32x16>(&self, at: usize, count: usize) -> V {
        // SAFETY: the caller's contract.
        unsafe {
            let mut lanes: V = T::load_mixed_block(self.x.add(at), count);
            if SCALED {
                lanes = T::round_number(lanes * V::splat(self.scale));
            }
            self.mask.apply(lanes, at, count)
        }
    }

    /// Writes sixteen scores to `kept`, and returns the lane-wise maximum of the scores and `max`.
    ///
    /// # Safety
    /// The scores are within the row.
    #[inline(always)]
    unsafe fn keep_block<V: F32x16>(&self, at: usize, kept: *mut f32, max: V) -> V {
        // SAFETY: the caller's contract.
        unsafe {
            let lanes = self.block::<V>(at, LANES);
            lanes.store(kept.add(at));
            lanes.max(max)
        }
    }

    /// Writes the scores in the order of [`block`](Self::block) to `kept`, which may be `x` itself,
    /// and returns the largest score. The result may miss a NaN, but then the exponential of the
    /// NaN makes the sum NaN.
    #[inline(always)]
    unsafe fn keep<V: F32x16>(&self, kept: *mut f32) -> f32 {
        let mut max = [V::splat(f32::NEG_INFINITY); 4];
        let mut i = 0;
        // SAFETY: every access is within the row, and elements are read before they are
        // overwritten.
        unsafe {
            while !V::SMALL && i + 4 * LANES <= self.count {
                // This code is not a loop, since a loop would keep the maxima in memory.
                max[0] = self.keep_block(i, kept, max[0]);
                max[1] = self.keep_block(i + LANES, kept, max[1]);
                max[2] = self.keep_block(i + 2 * LANES, kept, max[2]);
                max[3] = self.keep_block(i + 3 * LANES, kept, max[3]);
                i += 4 * LANES;
            }
            while i < self.count {
                let count = LANES.min(self.count - i);
                let lanes = self.block::<V>(i, count);
                lanes.store_first(kept.add(i), count);
                max[0] = lanes.keep_first(count, f32::NEG_INFINITY).max(max[0]);
                i += LANES;
            }
        }
        max[0].max(max[1]).max(max[2].max(max[3])).reduce_max()
    }
}

struct Grad<'a, T> {
    y: *const T,
    g: *const T,
    mask: Option<Mask<'a>>,
    out: Output<T>,
    rows: Range<usize>,
    shape: &'a MaskedSoftmaxShape,
    scale: f32,
}

impl<T: Float> Kernel for Grad<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        // SAFETY: the caller's contract.
        unsafe {
            match self.mask {
                None => self.each_row::<V, _>(|_, _| NoMask),
                Some(mask) => {
                    let mut staged = Staged::<u8>::new(mask);
                    self.each_row::<V, _>(|row, keys| Hidden(staged.row(row, keys)));
                }
            }
        }
    }
}

impl<T: Float> Grad<'_, T> {
    #[inline(always)]
    unsafe fn each_row<V: F32x16, M: RowMask<T>>(
        &self,
        mut mask_of: impl FnMut(usize, Range<usize>) -> M,
    ) {
        let keys = self.shape.keys;
        let (zero, scale) = (V::splat(0.0), V::splat(self.scale));
        for row in self.rows.clone() {
            let seen = self.shape.keys_of(row);
            let mask = mask_of(row, seen.clone());
            let first = row * keys + seen.start;
            // SAFETY: `seen` lies within the row, which lies within all buffers, and elements are
            // read before they are overwritten.
            unsafe {
                let (y, g) = (self.y.add(first), self.g.add(first));
                let (out, count) = (self.out.add(row * keys), seen.len());
                let visible = out.from(seen.start);
                let along = V::splat(dot::<V, T>(y, g, count));
                let mut i = 0;
                while i + LANES <= count {
                    prefetch_block(y.wrapping_add(keys + i)); // the next row
                    prefetch_block(g.wrapping_add(keys + i));
                    let (y, g): (V, V) = (T::load_mixed(y.add(i)), T::load_mixed(g.add(i)));
                    let lanes = mask.keep(y * (g - along) * scale, i, LANES);
                    visible.put_mixed(lanes, i);
                    i += LANES;
                }
                if i < count {
                    let tail = count - i;
                    let (y, g): (V, V) =
                        (T::load_first(y.add(i), tail), T::load_first(g.add(i), tail));
                    let lanes = mask.keep(y * (g - along) * scale, i, tail);
                    visible.put_first(lanes, i, tail);
                }
                out.fill(zero, 0..seen.start);
                out.fill(zero, seen.end..keys);
            }
        }
    }
}

/// # Safety
/// `a` and `b` are readable for `count` elements.
#[inline(always)]
unsafe fn dot<V: F32x16, T: Float>(a: *const T, b: *const T, count: usize) -> f32 {
    let mut sums = [V::splat(0.0); 4];
    let mut i = 0;
    // SAFETY: every access is within the caller's elements.
    unsafe {
        while i + 4 * LANES <= count {
            for (block, sum) in sums.iter_mut().enumerate() {
                let at = i + block * LANES;
                *sum = T::load_mixed::<V>(a.add(at)).mul_add(T::load_mixed(b.add(at)), *sum);
            }
            i += 4 * LANES;
        }
        while i + LANES <= count {
            sums[0] = T::load_mixed::<V>(a.add(i)).mul_add(T::load_mixed(b.add(i)), sums[0]);
            i += LANES;
        }
        for sum in &mut sums {
            *sum = T::ordered(*sum);
        }
        if i < count {
            let tail = count - i;
            let (a, b): (V, V) = (T::load_first(a.add(i), tail), T::load_first(b.add(i), tail));
            sums[1] = a.mul_add(b, sums[1]);
        }
    }
    ((sums[0] + sums[1]) + (sums[2] + sums[3])).reduce_add()
}
