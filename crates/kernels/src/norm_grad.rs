//! The gradients of RMS and layer normalization for the input x, the weight and the bias.
//!
//! Let `n = (x - m) * r` with `r = 1 / sqrt(mean((x - m)^2) + eps)`, where m is the mean, or 0 for
//! RMS normalization. The gradient of x is `r * (h - mean(h) - n * mean(h * n))` with
//! `h = g * weight`; RMS normalization leaves out `mean(h)`. The gradient of the weight is the sum
//! of `g * n` over the rows, and the gradient of the bias is the sum of g. For an affine
//! map, `x * weight + bias`, the gradient of x is h, the gradient of the weight is the sum of
//! `g * x` over the rows, and the gradient of the bias is the sum of g.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::fold::{Sum, fold_row};
use super::linear::workspace;
use super::output::Output;
use super::simd::{F32x16, Kernel, LANES, prefetch_block};
use super::{Machine, Shared};

/// The arguments of one call. Buffers hold elements of one type and are aligned to them.
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
    /// Whether to compute layer normalization; otherwise RMS normalization.
    pub centered: bool,
    /// Whether the call is an affine map: it has a weight, but no normalization.
    pub affine: bool,
}

/// The largest number of parts into which the rows are split. Each part is summed, then the sums
/// of the parts are added, so that the results do not depend on the number of threads.
const PARTS: usize = 64;
/// The fewest rows in a part except the last, and the most rows that are computed together.
const PART_ROWS: usize = 8;

/// How many bytes of rows the nearest cache keeps (`NEAREST`), and how many bytes of all arrays the
/// larger caches keep (`KEPT`).
const NEAREST: usize = 32 << 10;
const KEPT: usize = 16 << 20;

/// Computes the gradients in f32, and rounds each gradient once.
///
/// # Safety
/// The buffers have the documented shapes. No two overlap, except that `of_x` may be an input.
pub unsafe fn norm_grad(element: Element, call: NormGrad) {
    // SAFETY: the caller's contract; this CPU has the instruction set of the current machine.
    with_element!(element, T => unsafe { norm_grad_on::<T>(Machine::current(), call) })
}

/// # Safety
/// The contract of [`norm_grad`] holds.
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
        // The kernel reads each row twice, the second time from the nearest cache if the rows fit.
        // If the larger caches do not keep all rows, it is faster to take more rows at a time.
        let bytes = size_of::<T>() * axis;
        let together = match 3 * rows * bytes <= KEPT {
            true => (NEAREST / (2 * bytes)).clamp(2, PART_ROWS),
            false => PART_ROWS,
        };
        let shared = Job { call, out, sums: Shared(sums), width, each, parts, together };
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
    /// For each part, `width` sums for each vector (weight, bias) whose gradient is wanted.
    sums: Shared<f32>,
    width: usize,
    each: usize,
    parts: usize,
    /// The number of rows that are computed together if sixteen floats are one register.
    together: usize,
}

// SAFETY: inputs are only read; the threads divide the outputs and the sums among themselves.
unsafe impl<T> Sync for Job<T> {}

impl<T: Float> Job<T> {
    /// The sums of a part for the weight and for the bias, if their gradients are wanted.
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

impl<T: Float> Kernel for Rows<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let &Job { call, each, width, together, .. } = self.job;
        let together = if V::ONE_REGISTER { together } else { PART_ROWS };
        for part in self.parts {
            let sums = self.job.sums(part);
            // SAFETY: the sums have `width` columns; the rows are readable.
            unsafe {
                for sums in sums.into_iter().flatten() {
                    sums.write_bytes(0, width);
                }
                let end = call.rows.min((part + 1) * each);
                for row in (part * each..end).step_by(together) {
                    let rows = row..end.min(row + together);
                    let (weighted, centered) = (!call.weight.is_null(), call.centered);
                    let form = Form { weighted, centered, affine: call.affine };
                    // The forms in capital letters are constants, so the compiler removes code.
                    match (weighted, centered) {
                        _ if V::SMALL => self.job.rows::<V>(form, rows, sums),
                        _ if form.affine => self.job.rows::<V>(AFFINE, rows, sums),
                        (true, false) => self.job.rows::<V>(WEIGHTED, rows, sums),
                        (true, true) => self.job.rows::<V>(BOTH, rows, sums),
                        (false, false) => self.job.rows::<V>(PLAIN, rows, sums),
                        (false, true) => self.job.rows::<V>(CENTERED, rows, sums),
                    }
                }
            }
        }
    }
}

/// Whether there is a weight, whether the mean is subtracted, and whether the map is affine.
#[derive(Clone, Copy)]
struct Form {
    weighted: bool,
    centered: bool,
    affine: bool,
}

const PLAIN: Form = Form { weighted: false, centered: false, affine: false };
const WEIGHTED: Form = Form { weighted: true, ..PLAIN };
const CENTERED: Form = Form { centered: true, ..PLAIN };
const BOTH: Form = Form { weighted: true, ..CENTERED };
const AFFINE: Form = Form { affine: true, ..WEIGHTED };

/// The columns that are written together, so that their weights and sums stay in the nearest cache.
const COLUMNS: usize = 16 * LANES;
/// The number of blocks of columns whose weights and sums stay in registers at the same time.
const BLOCKS: usize = 4;

/// The statistics of a row from which its gradients are computed. In the symbols at the top of this
/// file, `middle` is m, `scale` is r, `height` is `mean(h)`, and `slope` is `mean(h * n)`.
#[derive(Clone, Copy, Default)]
struct Stats {
    middle: f32,
    scale: f32,
    height: f32,
    slope: f32,
}

impl<T: Float> Job<T> {
    /// Computes at most [`PART_ROWS`] rows.
    #[inline(always)]
    unsafe fn rows<V: F32x16>(&self, form: Form, rows: Range<usize>, sums: [Option<*mut f32>; 2]) {
        let axis = self.call.axis;
        let mut all = [Stats::default(); PART_ROWS];
        // SAFETY: the rows lie within all buffers.
        unsafe {
            if !form.affine {
                for (row, stats) in rows.clone().zip(&mut all) {
                    *stats = self.stats::<V>(form, row);
                }
            }
            let all = &all[..rows.len()];
            let mut done = 0;
            if V::ONE_REGISTER {
                while done + BLOCKS * LANES <= axis {
                    self.blocks::<V, BLOCKS>(form, rows.start, done, LANES, all, sums);
                    done += BLOCKS * LANES;
                }
            }
            for start in (done..axis).step_by(COLUMNS) {
                let end = axis.min(start + COLUMNS);
                for (row, stats) in rows.clone().zip(all.chunks_exact(1)) {
                    let mut at = start;
                    while at + LANES <= end {
                        self.blocks::<V, 1>(form, row, at, LANES, stats, sums);
                        at += LANES;
                    }
                    if at < end {
                        self.blocks::<V, 1>(form, row, at, end - at, stats, sums);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn stats<V: F32x16>(&self, form: Form, row: usize) -> Stats {
        let axis = self.call.axis;
        let reciprocal = (1.0 / axis as f64) as f32;
        // SAFETY: the row lies within all buffers.
        unsafe {
            let mut middle = 0.0;
            if form.centered {
                let x = self.call.x.cast::<T>().add(row * axis);
                middle = fold_row::<V, T, Sum>(Sum, x, axis) * reciprocal;
            }
            // Two blocks at a time hide the latency of the additions.
            let mut sums = [[V::splat(0.0); 3]; 2];
            let mut at = 0;
            while at + 2 * LANES <= axis {
                for (half, sums) in sums.iter_mut().enumerate() {
                    let at = at + half * LANES;
                    self.sum::<V>(form, row, at, LANES, middle, sums);
                }
                at += 2 * LANES;
            }
            while at < axis {
                let count = LANES.min(axis - at);
                self.sum::<V>(form, row, at, count, middle, &mut sums[0]);
                at += LANES;
            }
            let [a, b] = sums;
            let square = T::ordered(a[0] + b[0]).reduce_add() * reciprocal;
            let scale = 1.0 / (square + self.call.eps).sqrt();
            let height = T::ordered(a[1] + b[1]).reduce_add() * reciprocal;
            let slope = T::ordered(a[2] + b[2]).reduce_add() * reciprocal * scale;
            Stats { middle, scale, height, slope }
        }
    }

    /// Adds `(x - middle)^2`, h (only if the mean is subtracted) and `(x - middle) * h` of `count`
    /// elements from `at` on to the sums.
    #[inline(always)]
    unsafe fn sum<V: F32x16>(
        &self,
        form: Form,
        row: usize,
        at: usize,
        count: usize,
        middle: f32,
        [squares, heights, along]: &mut [V; 3],
    ) {
        let place = row * self.call.axis + at;
        // SAFETY: the elements lie within all buffers.
        unsafe {
            let (x, g) = (self.call.x.cast::<T>().add(place), self.call.g.cast::<T>().add(place));
            prefetch_block(x.wrapping_add(self.call.axis)); // the next row
            prefetch_block(g.wrapping_add(self.call.axis));
            let (mut d, mut h): (V, V) =
                (T::load_mixed_block(x, count), T::load_mixed_block(g, count));
            if form.weighted {
                h = h * T::load_mixed_block(self.call.weight.cast::<T>().add(at), count);
            }
            if form.centered {
                d = d - V::splat(middle);
                *heights = *heights + if count < LANES { T::mixed(h) } else { h };
            }
            if count < LANES {
                (d, h) = (T::mixed(d.keep_first(count, 0.0)), T::mixed(h));
            }
            *squares = d.mul_add(d, *squares);
            *along = d.mul_add(h, *along);
        }
    }

    /// Writes the gradients of x in N blocks of columns, `count` columns each, from column `at` on,
    /// for the rows from `first` on, whose stats are `all`. Also adds to the weight and bias sums.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    unsafe fn blocks<V: F32x16, const N: usize>(
        &self,
        form: Form,
        first: usize,
        at: usize,
        count: usize,
        all: &[Stats],
        sums: [Option<*mut f32>; 2],
    ) {
        let call = &self.call;
        let zero = V::splat(0.0);
        let (mut weights, mut of_vectors) = ([zero; N], [[zero; N]; 2]);
        // SAFETY: the elements lie within all buffers, the sums have full blocks, and elements are
        // read before they are overwritten.
        unsafe {
            for block in 0..N {
                let at = at + block * LANES;
                if form.weighted {
                    weights[block] = T::load_mixed_block(call.weight.cast::<T>().add(at), count);
                }
                for (of, sums) in of_vectors.iter_mut().zip(sums) {
                    if let Some(sums) = sums {
                        of[block] = V::load(sums.add(at));
                    }
                }
            }
            let [of_weight, of_bias] = &mut of_vectors;
            for (row, stats) in all.iter().enumerate() {
                let start = (first + row) * call.axis;
                for block in 0..N {
                    let at = at + block * LANES;
                    let place = start + at;
                    let gradient: V = T::load_mixed_block(call.g.cast::<T>().add(place), count);
                    let mut n: V = T::load_mixed_block(call.x.cast::<T>().add(place), count);
                    let mut h = if form.weighted { gradient * weights[block] } else { gradient };
                    if form.centered {
                        n = n - V::splat(stats.middle);
                        h = h - V::splat(stats.height);
                    }
                    let mut y = h;
                    if !form.affine {
                        n = n * V::splat(stats.scale);
                        y = (h - n * V::splat(stats.slope)) * V::splat(stats.scale);
                    }
                    if !call.added.is_null() {
                        y = y + T::load_mixed_block(call.added.cast::<T>().add(place), count);
                    }
                    // Add even if the weight's sums are not wanted: a branch would take longer.
                    of_weight[block] = gradient.mul_add(n, of_weight[block]);
                    if form.centered || sums[1].is_some() {
                        of_bias[block] = of_bias[block] + gradient;
                    }
                    self.out.add(start).put_mixed_block(y, at, count);
                }
            }
            for (of, sums) in of_vectors.iter().zip(sums) {
                if let Some(sums) = sums {
                    for (block, of) in of.iter().enumerate() {
                        of.store(sums.add(at + block * LANES));
                    }
                }
            }
        }
    }
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
                        // SAFETY: the sums have full blocks.
                        sum = sum + unsafe { V::load(sums.add(at)) };
                    }
                }
                if !out.is_null() {
                    // SAFETY: the columns are writable.
                    unsafe { Output::near(out.cast::<T>()).add(at).put_mixed_block(sum, 0, count) };
                }
            }
        }
    }
}
