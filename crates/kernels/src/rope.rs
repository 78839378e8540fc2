//! Rotary position embedding over `[batch, heads, seq, head_dim]`.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::math::{exp_like_mlx, sin_cos};
use super::output::Output;
use super::simd::{F32x16, Kernel, LANES, prefetch};
use super::{Machine, Shared};

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RopeShape {
    pub batch: usize,
    pub heads: usize,
    pub seq: usize,
    pub head_dim: usize,
    /// The number of features to rotate: even, at most `head_dim`. The other features are copied.
    pub dims: usize,
    /// Whether a pair consists of adjacent features; otherwise the two are `dims / 2` apart.
    pub traditional: bool,
    /// Whether to rotate forward. If false, the rotation uses the negated angle.
    pub forward: bool,
    /// A factor for the positions.
    pub scale: f32,
}

#[derive(Clone, Copy, Debug)]
pub enum Frequencies<'a> {
    /// The frequency of pair i is `base^(-i / (dims / 2))`.
    Base(f32),
    /// `dims / 2` divisors; the angle of pair i is `position * scale / freqs[i]`.
    Explicit(&'a [f32]),
}

/// Equals `mx.fast.rope` on MLX's Linux CPU backend bit for bit. Sines, cosines, products and sums
/// are all rounded to the element type.
///
/// # Safety
/// `x` and `out` hold the shape's elements, aligned for the element type. `out` is `x` itself or
/// overlaps nothing. `offsets` holds 1 or `batch` numbers, and explicit frequencies are `dims / 2`
/// numbers.
pub unsafe fn rope(
    element: Element,
    x: *const u8,
    out: *mut u8,
    shape: &RopeShape,
    frequencies: Frequencies,
    offsets: &[i32],
) {
    let machine = Machine::current();
    // SAFETY: the caller upholds the contract; this machine supports `machine.level`.
    with_element!(element, T => unsafe {
        rope_on::<T>(machine, x.cast(), out.cast(), shape, frequencies, offsets)
    })
}

/// The number of columns of the sine and cosine tables that are computed at a time.
pub(super) const COLUMNS: usize = 256;
/// The number of floats in a table. Sines and cosines together take half of a first-level cache of
/// 32 KB.
pub const TABLE: usize = 2048;
/// How many bytes ahead the input is prefetched. A tile's rows are too short for hardware
/// prefetchers.
const AHEAD: usize = 2048;

pub unsafe fn rope_on<T: Float>(
    machine: Machine,
    x: *const T,
    out: *mut T,
    shape: &RopeShape,
    frequencies: Frequencies,
    offsets: &[i32],
) {
    let rows = shape.batch * shape.heads;
    if rows * shape.seq * shape.head_dim == 0 {
        return;
    }
    // A tile is a range of positions in a group of rows. The rows share a table of sines and
    // cosines. So the tables stay on the stack and in L2 for any length of the sequence.
    let columns = if shape.traditional { shape.dims } else { shape.dims / 2 };
    let width = columns.clamp(1, COLUMNS).next_multiple_of(LANES);
    let ranges = machine.pool.ranges(rows * shape.seq * shape.head_dim);
    let run = (TABLE / width).min(shape.seq.div_ceil(ranges));
    let runs = shape.seq.div_ceil(run);
    let per_batch = offsets.len() > 1;
    let group = if per_batch { shape.heads } else { rows.div_ceil(ranges.div_ceil(runs)) };
    let groups = rows.div_ceil(group);
    let tile = run * shape.head_dim * group;
    // Unless `traditional`, the kernel stores the two halves of a row separately. If a half is not
    // a multiple of the vector width, a row length of 1 turns off streaming stores, which need
    // alignment.
    let whole = shape.traditional || columns.is_multiple_of(LANES);
    let row = if whole { shape.head_dim } else { 1 };
    let out = Output::new(out, &[x], rows * shape.seq * shape.head_dim, row);
    let x = Shared(x.cast_mut());
    machine.pool.for_each(runs * groups, tile, &|tiles| {
        for tile in tiles {
            let (index, start) = (tile / runs, tile % runs * run);
            let kernel = Tile {
                x: x.get(),
                out,
                shape,
                frequencies,
                offset: if per_batch { offsets[index] } else { offsets[0] },
                rows: index * group..rows.min((index + 1) * group),
                positions: start..shape.seq.min(start + run),
                columns,
            };
            // SAFETY: the caller upholds the contract; the tiles are disjoint.
            unsafe { machine.level.run(kernel) }
        }
    });
}

pub(super) struct Tile<'a, T> {
    pub x: *const T,
    pub out: Output<T>,
    pub shape: &'a RopeShape,
    pub frequencies: Frequencies<'a>,
    pub offset: i32,
    pub rows: Range<usize>,
    pub positions: Range<usize>,
    pub columns: usize,
}

/// Cosines and sines. Each position of a tile has a row of `stride` numbers. In full vectors, the
/// lanes are in the order of [`Float::load_mixed`].
pub(super) struct Table {
    pub cos: [MaybeUninit<f32>; TABLE],
    pub sin: [MaybeUninit<f32>; TABLE],
}

impl Table {
    #[inline(always)]
    pub fn new() -> Self {
        Self { cos: [MaybeUninit::uninit(); TABLE], sin: [MaybeUninit::uninit(); TABLE] }
    }
}

impl<T: Float> Kernel for Tile<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let mut table = Table::new();
        let RopeShape { seq, head_dim, traditional, .. } = *self.shape;
        let mut start = 0;
        while start < self.columns {
            let columns = start..self.columns.min(start + COLUMNS);
            let stride = columns.len().next_multiple_of(LANES);
            // SAFETY: the table has room for the tile's positions at this stride and is filled
            // before it is read. The rotations stay within the tile's features.
            unsafe {
                self.fill::<V>(&mut table, columns.clone(), stride);
                let cos = table.cos.as_ptr().cast::<f32>();
                let sin = table.sin.as_ptr().cast::<f32>();
                for row in self.rows.clone() {
                    let mut at = (row * seq + self.positions.start) * head_dim;
                    let mut line = 0;
                    for _ in self.positions.clone() {
                        let (from, to) = (self.x.add(at), self.out.add(at));
                        let (cos, sin) = (cos.add(line), sin.add(line));
                        if traditional {
                            rotate_pairs::<V, T>(from, to, columns.clone(), cos, sin);
                        } else {
                            rotate_halves::<V, T>(
                                from,
                                to,
                                columns.clone(),
                                self.columns,
                                cos,
                                sin,
                            );
                        }
                        prefetch(from.cast::<u8>().wrapping_add(AHEAD), head_dim * size_of::<T>());
                        at += head_dim;
                        line += stride;
                    }
                }
            }
            start += COLUMNS;
        }
        // SAFETY: the caller upholds the contract.
        unsafe { self.copy_rest() };
    }
}

impl<T: Float> Tile<'_, T> {
    /// Copies the features beyond `dims` unchanged.
    unsafe fn copy_rest(&self) {
        let RopeShape { seq, head_dim, dims, .. } = *self.shape;
        if head_dim == dims || std::ptr::eq(self.x, self.out.to()) {
            return;
        }
        for row in self.rows.clone() {
            for position in self.positions.clone() {
                let at = (row * seq + position) * head_dim + dims;
                // SAFETY: the features are within the vector; the buffers do not overlap.
                unsafe {
                    let (from, to) = (self.x.add(at), self.out.to().add(at));
                    std::ptr::copy_nonoverlapping(from, to, head_dim - dims);
                }
            }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn fill<V: F32x16>(
        &self,
        table: &mut Table,
        columns: Range<usize>,
        stride: usize,
    ) {
        let mut inverse = [0.0f32; COLUMNS];
        self.inverse_frequencies(&mut inverse[..columns.len()], columns.start);
        // In adjacent pairs, the sine for the first element is negated. The backward pass negates
        // all signs.
        let turn = if self.shape.forward { 1.0f32 } else { -1.0 };
        let mut signs = [turn; LANES];
        if self.shape.traditional {
            signs.iter_mut().step_by(2).for_each(|sign| *sign = -turn);
        }
        // SAFETY: `stride` is a multiple of sixteen and at most the length of `inverse`. The number
        // of positions in a tile times `stride` is at most the size of the table.
        unsafe {
            let signs = V::load(signs.as_ptr());
            for (index, position) in self.positions.clone().enumerate() {
                let position = V::splat((position as f32 + self.offset as f32) * self.shape.scale);
                for column in (0..stride).step_by(LANES) {
                    let angle = position * V::load(inverse.as_ptr().add(column));
                    let (sin, cos) = sin_cos(angle);
                    let (mut sin, mut cos) = (T::round(sin) * signs, T::round(cos));
                    if column + LANES <= columns.len() {
                        (sin, cos) = (T::mixed(sin), T::mixed(cos));
                    }
                    let at = index * stride + column;
                    sin.store(table.sin.as_mut_ptr().add(at).cast());
                    cos.store(table.cos.as_mut_ptr().add(at).cast());
                }
            }
        }
    }

    /// Computes the frequencies (the inverses of MLX's `freqs`), starting at column `first`. With
    /// `traditional`, the two columns of a pair have the same frequency.
    #[inline(always)]
    fn inverse_frequencies(&self, inverse: &mut [f32], first: usize) {
        let shift = usize::from(self.shape.traditional);
        match self.frequencies {
            Frequencies::Base(base) => {
                let step = base.ln() / (self.shape.dims / 2) as f32;
                for (column, value) in inverse.iter_mut().enumerate() {
                    *value = exp_like_mlx(-(((first + column) >> shift) as f32) * step);
                }
            }
            Frequencies::Explicit(periods) => {
                for (column, value) in inverse.iter_mut().enumerate() {
                    *value = 1.0 / periods[(first + column) >> shift];
                }
            }
        }
    }
}

/// Rotates each feature in `columns` together with the feature `half` places after it.
#[inline(always)]
pub(super) unsafe fn rotate_halves<V: F32x16, T: Float>(
    from: *const T,
    to: Output<T>,
    columns: Range<usize>,
    half: usize,
    cos: *const f32,
    sin: *const f32,
) {
    // SAFETY: both features of a pair lie within the vector, the table has full vectors, and both
    // features are read before either is written.
    unsafe {
        let (from, to) = (from.add(columns.start), to.add(columns.start));
        let count = columns.len();
        let mut i = 0;
        while i + LANES <= count {
            let a: V = T::load_mixed(from.add(i));
            let b: V = T::load_mixed(from.add(half + i));
            let (c, s) = (V::load(cos.add(i)), V::load(sin.add(i)));
            to.put_mixed(T::round_number(a * c) - T::round_number(b * s), i);
            to.put_mixed(T::round_number(a * s) + T::round_number(b * c), half + i);
            i += LANES;
        }
        if i < count {
            let rest = count - i;
            let a: V = T::load_first(from.add(i), rest);
            let b: V = T::load_first(from.add(half + i), rest);
            let (c, s) = (V::load(cos.add(i)), V::load(sin.add(i)));
            to.put_first(T::round(a * c) - T::round(b * s), i, rest);
            to.put_first(T::round(a * s) + T::round(b * c), half + i, rest);
        }
    }
}

/// Rotates the features `columns` in adjacent pairs. The sines in the table already have the signs
/// of the rotation.
#[inline(always)]
pub(super) unsafe fn rotate_pairs<V: F32x16, T: Float>(
    from: *const T,
    to: Output<T>,
    columns: Range<usize>,
    cos: *const f32,
    sin: *const f32,
) {
    // SAFETY: as in `rotate_halves`. The number of columns is even, so no vector splits a pair.
    unsafe {
        let (from, to) = (from.add(columns.start), to.add(columns.start));
        let count = columns.len();
        let mut i = 0;
        while i + LANES <= count {
            let a: V = T::load_mixed(from.add(i));
            let (c, s) = (V::load(cos.add(i)), V::load(sin.add(i)));
            let swapped = T::swap_mixed_pairs(a);
            to.put_mixed(T::round_number(a * c) + T::round_number(swapped * s), i);
            i += LANES;
        }
        if i < count {
            let a: V = T::load_first(from.add(i), count - i);
            let (c, s) = (V::load(cos.add(i)), V::load(sin.add(i)));
            to.put_first(T::round(a * c) + T::round(a.swap_pairs() * s), i, count - i);
        }
    }
}
