//! Cross-entropy of rows of logits against class numbers, and its gradient, in f32.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::logsumexp::{CHUNK, Chunks, Stats, row_stats, stats_of_few};
use super::output::Output;
use super::simd::{F32x16, Kernel, LANES};
use super::softmax::exponential;
use super::{Machine, Shared};

/// The target classes of the rows, with label smoothing and a class that is ignored.
#[derive(Clone, Copy)]
pub struct Targets<'a> {
    /// A class for each row. If the class does not exist, the row's loss and gradient are NaN.
    pub classes: &'a [i32],
    /// Label smoothing: the share of the target's probability that is spread evenly over all
    /// classes, in [0, 1).
    pub smoothing: f32,
    /// Rows with this class have a loss and a gradient of 0.
    pub ignored: Option<i32>,
}

/// The target of one row.
enum Target {
    Class(usize),
    Ignored,
    Invalid,
}

impl Targets<'_> {
    fn of(&self, row: usize, axis: usize) -> Target {
        let class = self.classes[row];
        if self.ignored == Some(class) {
            return Target::Ignored;
        }
        match usize::try_from(class) {
            Ok(class) if class < axis => Target::Class(class),
            _ => Target::Invalid,
        }
    }
}

/// Computes `logsumexp(x) - (1 - smoothing) * x[target] - smoothing * mean(x)` of each row. All
/// terms are relative to the row's maximum. `stats` receives the maximum and the sum of
/// exponentials of each row.
///
/// # Safety
/// `x` holds `rows * axis` elements and `out` holds `rows`, both aligned to the element. `stats`
/// holds `2 * rows` floats. `rows` is the number of targets.
pub unsafe fn cross_entropy(
    element: Element,
    x: *const u8,
    targets: Targets,
    out: *mut u8,
    stats: *mut f32,
    axis: usize,
) {
    let machine = Machine::current();
    // SAFETY: the caller's contract; this CPU has the instruction set of `machine`.
    with_element!(element, T => unsafe {
        if targets.smoothing > 0.0 {
            loss_on::<T, true>(machine, x.cast(), targets, out.cast(), stats, axis)
        } else {
            loss_on::<T, false>(machine, x.cast(), targets, out.cast(), stats, axis)
        }
    })
}

/// Computes `g * (softmax(x) - (1 - smoothing) * onehot - smoothing / axis)` of each row, from the
/// `stats` that [`cross_entropy`] wrote and the gradient `g` of each loss.
///
/// # Safety
/// `x` and `out` hold `rows * axis` elements and `g` holds `rows`, all aligned to the element.
/// `stats` holds `2 * rows` floats. `rows` is the number of targets. `out` is `x` or overlaps
/// nothing.
pub unsafe fn cross_entropy_grad(
    element: Element,
    [x, g]: [*const u8; 2],
    targets: Targets,
    stats: *const f32,
    out: *mut u8,
    axis: usize,
) {
    let machine = Machine::current();
    // SAFETY: the caller's contract; this CPU has the instruction set of `machine`.
    with_element!(element, T => unsafe {
        grad_on::<T>(machine, [x.cast(), g.cast()], targets, stats, out.cast(), axis)
    })
}

pub unsafe fn loss_on<T: Float, const SMOOTH: bool>(
    machine: Machine,
    x: *const T,
    targets: Targets,
    out: *mut T,
    stats: *mut f32,
    axis: usize,
) {
    let rows = targets.classes.len();
    if axis == 0 {
        return;
    }
    // SAFETY: the caller's contract.
    let given = unsafe { stats_of_few::<T, SMOOTH>(machine, x, rows, axis) };
    let given = given.as_deref();
    let (x, out, stats) = (Shared(x.cast_mut()), Shared(out), Shared(stats));
    machine.pool.for_each(rows, if given.is_some() { 1 } else { 2 * axis }, &|rows| {
        let (x, out, stats) = (x.get(), out.get(), stats.get());
        let kernel = Loss::<T, SMOOTH> { x, targets, given, out, stats, axis, rows };
        // SAFETY: the caller's contract; the ranges of rows are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

struct Loss<'a, T, const SMOOTH: bool> {
    x: *const T,
    targets: Targets<'a>,
    given: Option<&'a [Stats]>,
    out: *mut T,
    stats: *mut f32,
    axis: usize,
    rows: Range<usize>,
}

impl<T: Float, const SMOOTH: bool> Kernel for Loss<'_, T, SMOOTH> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for row in self.rows {
            // SAFETY: the row and the target's element lie within the buffers.
            unsafe {
                let x = self.x.add(row * self.axis);
                let stats = match self.given {
                    Some(stats) => stats[row],
                    None => row_stats::<V, T, SMOOTH>(x, self.axis),
                };
                self.stats.add(2 * row).write(stats.max);
                self.stats.add(2 * row + 1).write(stats.sum);
                let loss = match self.targets.of(row, self.axis) {
                    Target::Ignored => 0.0,
                    Target::Invalid => f32::NAN,
                    Target::Class(class) => {
                        let score = element::<V, T>(x.add(class)) - stats.max;
                        let mut loss = stats.log() - score;
                        if SMOOTH {
                            let mean = stats.total / self.axis as f32 - stats.max;
                            let smoothing = self.targets.smoothing;
                            loss = stats.log() - (1.0 - smoothing) * score - smoothing * mean;
                        }
                        loss
                    }
                };
                T::store_first(V::splat(loss), self.out.add(row), 1);
            }
        }
    }
}

/// # Safety
/// `from` is readable for one element.
#[inline(always)]
unsafe fn element<V: F32x16, T: Float>(from: *const T) -> f32 {
    // SAFETY: the caller's contract. The other lanes are zeros, so the sum is the element.
    unsafe { T::load_first::<V>(from, 1).reduce_add() }
}

pub unsafe fn grad_on<T: Float>(
    machine: Machine,
    [x, g]: [*const T; 2],
    targets: Targets,
    stats: *const f32,
    out: *mut T,
    axis: usize,
) {
    if axis == 0 {
        return;
    }
    let items = targets.classes.len() * Chunks::of(axis).each;
    let out = Output::new(out, &[x], targets.classes.len() * axis, axis);
    let (x, g) = (Shared(x.cast_mut()), Shared(g.cast_mut()));
    let stats = Shared(stats.cast_mut());
    machine.pool.for_each(items, 2 * axis.min(CHUNK), &|range| {
        let (x, g, stats) = (x.get(), g.get(), stats.get());
        let kernel = Grad { x, g, targets, stats, out, axis, range };
        // SAFETY: the caller's contract; the ranges of chunks are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

struct Grad<'a, T> {
    x: *const T,
    g: *const T,
    targets: Targets<'a>,
    stats: *const f32,
    out: Output<T>,
    axis: usize,
    range: Range<usize>,
}

impl<T: Float> Kernel for Grad<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let chunks = Chunks::of(self.axis);
        for index in self.range.clone() {
            let (row, columns) = chunks.place(index);
            let first = row * self.axis + columns.start;
            // SAFETY: the chunk lies within both buffers, and stats and g have entries for the row.
            unsafe {
                let (x, out, count) = (self.x.add(first), self.out.add(first), columns.len());
                let max = *self.stats.add(2 * row);
                let sum = *self.stats.add(2 * row + 1);
                let g = element::<V, T>(self.g.add(row));
                let class = match self.targets.of(row, self.axis) {
                    Target::Class(class) => class,
                    Target::Ignored => {
                        shares::<V, T>(x, out, count, [max, 0.0, 0.0], false);
                        continue;
                    }
                    Target::Invalid => {
                        shares::<V, T>(x, out, count, [max, 0.0, f32::NAN], false);
                        continue;
                    }
                };
                let spread = g * self.targets.smoothing / self.axis as f32;
                // Read the target's score before `shares` may overwrite it.
                let hit = columns.contains(&class).then(|| {
                    let at = class - columns.start;
                    let score = V::splat(element::<V, T>(x.add(at)));
                    let less = spread + g * (1.0 - self.targets.smoothing);
                    (at, share::<V, T>(score, max, g / sum) - V::splat(less))
                });
                shares::<V, T>(x, out, count, [max, g / sum, -spread], true);
                if let Some((at, value)) = hit {
                    out.put_first(value, at, 1);
                }
            }
        }
    }
}

/// This is a function and not a closure, because a closure that is not inlined is not compiled for
/// the instruction set.
#[inline(always)]
fn share<V: F32x16, T: Float>(x: V, max: f32, factor: f32) -> V {
    exponential::<V, T>(x - V::splat(max)) * V::splat(factor)
}

/// Writes `exp(x - max) * factor + shift` to `out`, or only `shift` if `counts` is false.
///
/// # Safety
/// `x` and `out` hold `count` elements; `out` may be `x`.
#[inline(always)]
unsafe fn shares<V: F32x16, T: Float>(
    x: *const T,
    out: Output<T>,
    count: usize,
    [max, factor, shift]: [f32; 3],
    counts: bool,
) {
    let shift = V::splat(shift);
    let mut i = 0;
    // SAFETY: every access is within the elements, which are read before they are overwritten.
    unsafe {
        while i + LANES <= count {
            let lanes = if counts {
                share::<V, T>(T::load_mixed(x.add(i)), max, factor) + shift
            } else {
                shift
            };
            out.put_mixed(lanes, i);
            i += LANES;
        }
        if i < count {
            let tail = count - i;
            let lanes = if counts {
                share::<V, T>(T::load_first(x.add(i), tail), max, factor) + shift
            } else {
                shift
            };
            out.put_first(lanes, i, tail);
        }
    }
}
