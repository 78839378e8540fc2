//! The gradients of RMS and layer normalization, of the sum before it and of the vectors after it.
//!
//! With `n = (x - m) * r`, where r is the reciprocal root of the mean square and m the mean, or 0
//! for RMS normalization: the gradient of x is `r * (h - mean(h) - n * mean(h * n))` with
//! `h = g * weight`, where RMS normalization leaves out `mean(h)`. The gradient of the weight is
//! the sum of `g * n` over the rows, and that of the bias the sum of g.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::linear::workspace;
use super::output::Output;
use super::rms_norm::inverse_rms;
use super::simd::{F32x16, Kernel, LANES, prefetch_block};
use super::{Machine, Shared};

/// One call. Buffers hold elements of one type and are aligned to them.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct NormGrad {
    /// `[rows, axis]`
    pub x: *const u8,
    /// `[axis]`, or null
    pub weight: *const u8,
    /// The gradient of the result, `[rows, axis]`
    pub g: *const u8,
    /// `[rows, axis]`, added to the gradient of x, or null
    pub added: *const u8,
    /// `[rows, axis]`; may be `x`, `g` or `added`
    pub of_x: *mut u8,
    /// `[axis]`, or null
    pub of_weight: *mut u8,
    /// `[axis]`, or null
    pub of_bias: *mut u8,
    pub rows: usize,
    pub axis: usize,
    pub eps: f32,
    /// Layer normalization; otherwise RMS normalization.
    pub centered: bool,
}

/// The rows are summed in this many parts at most, and then the parts, so that the sums do not
/// depend on the threads.
const PARTS: usize = 64;
/// The fewest rows of a part.
const PART_ROWS: usize = 8;

/// Computed in f32 and rounded once.
///
/// # Safety
/// The buffers hold what the fields say; outputs overlap nothing but what `of_x` may be.
pub unsafe fn norm_grad(element: Element, call: NormGrad) {
    // SAFETY: as the caller promises; the kernel runs on this machine.
    with_element!(element, T => unsafe { norm_grad_on::<T>(Machine::current(), call) })
}

/// # Safety
/// The contract of [`norm_grad`].
pub unsafe fn norm_grad_on<T: Float>(machine: Machine, call: NormGrad) {
    let NormGrad { rows, axis, .. } = call;
    if axis == 0 {
        return;
    }
    let each = rows.div_ceil(PARTS).max(PART_ROWS);
    let parts = rows.div_ceil(each);
    let vectors = usize::from(!call.of_weight.is_null()) + usize::from(!call.of_bias.is_null());
    let width = axis.next_multiple_of(LANES);
    workspace::with(vectors * parts * width, &|sums| {
        let inputs = [call.x, call.g].map(<*const u8>::cast::<T>);
        let out = Output::new(call.of_x.cast::<T>(), &inputs, rows * axis, axis);
        let shared = Job { call, out, sums: Shared(sums), width, each, parts };
        machine.pool.for_each(parts, 2 * each * axis, &|range| {
            // SAFETY: the caller's contract; the parts are disjoint, and each has separate sums.
            unsafe { machine.level.run(Rows { job: &shared, parts: range }) }
        });
        let blocks = width / LANES;
        machine.pool.for_each(blocks, vectors * parts * LANES, &|blocks| {
            // SAFETY: the parts are summed; the blocks are disjoint.
            unsafe { machine.level.run(Sums { job: &shared, blocks }) }
        });
    });
}

struct Job<T> {
    call: NormGrad,
    out: Output<T>,
    /// For each part, sums of `width` columns for the weight and for the bias, as far as wanted.
    sums: Shared<f32>,
    width: usize,
    each: usize,
    parts: usize,
}

// SAFETY: inputs are only read; the threads divide the outputs and the sums among themselves.
unsafe impl<T> Sync for Job<T> {}

impl<T: Float> Job<T> {
    /// The sums of a part for the weight and for the bias, if they are wanted.
    fn sums(&self, part: usize) -> [Option<*mut f32>; 2] {
        let wanted = [!self.call.of_weight.is_null(), !self.call.of_bias.is_null()];
        let first = part * (usize::from(wanted[0]) + usize::from(wanted[1]));
        let place = |vector: usize| self.sums.get().wrapping_add((first + vector) * self.width);
        [wanted[0].then(|| place(0)), wanted[1].then(|| place(usize::from(wanted[0])))]
    }
}

struct Rows<'a, T> {
    job: &'a Job<T>,
    parts: Range<usize>,
}

#[inline(always)]
unsafe fn load<V: F32x16, T: Float>(from: *const T, count: usize) -> V {
    // SAFETY: the caller has `count` elements.
    unsafe {
        match count {
            LANES => T::load(from),
            _ => T::load_first(from, count),
        }
    }
}

impl<T: Float> Kernel for Rows<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let &Job { call, each, width, .. } = self.job;
        for part in self.parts {
            let sums = self.job.sums(part);
            // SAFETY: the sums have `width` columns; the rows exist.
            unsafe {
                for sums in sums.into_iter().flatten() {
                    sums.write_bytes(0, width);
                }
                for row in part * each..call.rows.min((part + 1) * each) {
                    match (call.weight.is_null(), call.centered) {
                        (false, false) => self.job.row::<V, true, false>(row, sums),
                        (false, true) => self.job.row::<V, true, true>(row, sums),
                        (true, false) => self.job.row::<V, false, false>(row, sums),
                        (true, true) => self.job.row::<V, false, true>(row, sums),
                    }
                }
            }
        }
    }
}

impl<T: Float> Job<T> {
    #[inline(always)]
    unsafe fn row<V: F32x16, const WEIGHTED: bool, const CENTERED: bool>(
        &self,
        row: usize,
        [of_weight, of_bias]: [Option<*mut f32>; 2],
    ) {
        let call = &self.call;
        let axis = call.axis;
        let at = row * axis;
        let reciprocal = (1.0 / axis as f64) as f32;
        // SAFETY: the row lies within all buffers, and reads come before the write to their place.
        unsafe {
            let (x, g) = (call.x.cast::<T>().add(at), call.g.cast::<T>().add(at));
            let weight = call.weight.cast::<T>();
            let added = (!call.added.is_null()).then(|| call.added.cast::<T>().add(at));
            let out = self.out.add(at);
            let (mut mean, mut inverse) = (0.0, 0.0);
            if CENTERED {
                mean = sum_of::<V, T>(x, axis) * reciprocal;
            } else {
                inverse = inverse_rms::<V, T>(x, axis, call.eps);
            }
            // Two blocks at a time hide the latency of the sums.
            let middle = V::splat(mean);
            let zero = V::splat(0.0);
            let [mut squares, mut heights, mut along] = [[zero; 2]; 3];
            for start in (0..axis).step_by(2 * LANES) {
                for half in 0..2 {
                    let i = start + half * LANES;
                    if i >= axis {
                        break;
                    }
                    let count = LANES.min(axis - i);
                    let mut h = load::<V, T>(g.add(i), count);
                    if WEIGHTED {
                        h = h * load(weight.add(i), count);
                    }
                    let mut d = load::<V, T>(x.add(i), count);
                    if CENTERED {
                        d = (d - middle).keep_first(count, 0.0);
                        squares[half] = d.mul_add(d, squares[half]);
                        heights[half] = heights[half] + h;
                    }
                    along[half] = d.mul_add(h, along[half]);
                }
            }
            let total = |sums: [V; 2]| (sums[0] + sums[1]).reduce_add() * reciprocal;
            let mut height = 0.0;
            if CENTERED {
                inverse = 1.0 / (total(squares) + call.eps).sqrt();
                height = total(heights);
            }
            let slope = total(along) * inverse;
            let (height, slope, scale) = (V::splat(height), V::splat(slope), V::splat(inverse));
            for i in (0..axis).step_by(LANES) {
                let count = LANES.min(axis - i);
                prefetch_block(x.wrapping_add(axis + i)); // the next row
                prefetch_block(g.wrapping_add(axis + i));
                let gradient = load::<V, T>(g.add(i), count);
                let mut h = gradient;
                if WEIGHTED {
                    h = h * load(weight.add(i), count);
                }
                let mut n = load::<V, T>(x.add(i), count);
                if CENTERED {
                    n = n - middle;
                    h = h - height;
                }
                n = n * scale;
                let mut y = (h - n * slope) * scale;
                if let Some(added) = added {
                    y = y + load(added.add(i), count);
                }
                if let Some(sums) = of_weight {
                    let sums = sums.add(i);
                    gradient.mul_add(n, V::load(sums)).keep_first(count, 0.0).store(sums);
                }
                if let Some(sums) = of_bias {
                    let sums = sums.add(i);
                    (V::load(sums) + gradient).store(sums);
                }
                match count {
                    LANES => out.put(y, i),
                    _ => out.put_first(y, i, count),
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn sum_of<V: F32x16, T: Float>(x: *const T, axis: usize) -> f32 {
    use super::fold::{Sum, fold_row};
    // SAFETY: the caller's row.
    unsafe { fold_row::<V, T, Sum>(Sum, x, axis) }
}

/// Adds up the sums of the parts, for blocks of columns.
struct Sums<'a, T> {
    job: &'a Job<T>,
    blocks: Range<usize>,
}

impl<T: Float> Kernel for Sums<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let call = &self.job.call;
        let outputs = [call.of_weight, call.of_bias];
        for at in self.blocks.map(|block| block * LANES) {
            let count = LANES.min(call.axis - at);
            for (vector, out) in outputs.into_iter().enumerate() {
                let mut sum = V::splat(0.0);
                for part in 0..self.job.parts {
                    if let Some(sums) = self.job.sums(part)[vector] {
                        // SAFETY: the sums have whole blocks.
                        sum = sum + unsafe { V::load(sums.add(at)) };
                    }
                }
                if !out.is_null() {
                    // SAFETY: the columns exist.
                    unsafe { T::store_first(sum, out.cast::<T>().add(at), count) };
                }
            }
        }
    }
}
