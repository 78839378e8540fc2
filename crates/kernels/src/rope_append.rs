//! Rotates the queries and keys of a step (the positions of one call), and writes them into the
//! state (the key/value cache with an area for queries), together with the step's values. The
//! backward pass computes the derivatives.

use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::output::Output;
use super::rope::{
    COLUMNS, Frequencies, RopeShape, TABLE, Table, Tile, rotate_halves, rotate_pairs,
};
use super::simd::{F32x16, Kernel, LANES, prefetch};
use super::{Machine, Shared, parallel_copy};

/// The number of positions for which the state stores queries.
pub const QUERY_POSITIONS: usize = 8;

/// How many positions of one head the kernel writes before it goes on to the next head. The state
/// stores the positions of a head contiguously.
const RUN: usize = 8;
/// The kernel prefetches the vector that lies this many heads ahead.
const AHEAD: usize = 4;

/// The shape of a step and of a state. A state is `[batch, rows, head_dim]`. Its rows are the
/// queries of 8 positions, then the keys of `capacity` positions for each head, and then the
/// values.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AppendShape {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub time: usize,
    pub head_dim: usize,
    pub capacity: usize,
    /// The number of features to rotate: even, at most `head_dim`. The other features are copied.
    pub dims: usize,
    pub traditional: bool,
    /// Whether to write a step into a state. If false, the kernel computes the derivatives of the
    /// step and of the state.
    pub forward: bool,
    /// A factor for the positions.
    pub scale: f32,
    /// A factor for the features that are rotated. The forward pass applies it before the rotation,
    /// the backward pass after it.
    pub multiplier: f32,
}

impl AppendShape {
    pub fn area(&self) -> usize {
        QUERY_POSITIONS * self.heads
    }

    pub fn rows(&self) -> usize {
        self.area() + 2 * self.kv_heads * self.capacity
    }

    /// The number of heads in `qkv`: queries, keys and values together.
    pub fn all_heads(&self) -> usize {
        self.heads + 2 * self.kv_heads
    }
}

/// Writes the queries, keys and values of `qkv`, `[batch, time, heads, head_dim]`, to their rows of
/// `out`, and rotates queries and keys as [`rope`](super::rope) does. Skips keys and values outside
/// the capacity, and the queries of steps that have more than [`QUERY_POSITIONS`] positions.
///
/// In the backward pass, `state` is the cotangent of the new state. `qkv` receives the derivatives
/// of the step. `out` receives the derivatives of the old state: the cotangent, with zeros in the
/// rows that the step wrote.
///
/// # Safety
/// `state`, `out` and `qkv` hold the shape's elements, aligned for the element type. `out` is
/// `state` or overlaps nothing. Only the backward pass writes to `qkv`. `offsets` and `slots` hold
/// 1 or `batch` numbers, and explicit frequencies are `dims / 2` numbers.
#[allow(clippy::too_many_arguments)]
pub unsafe fn rope_append(
    element: Element,
    state: *const u8,
    out: *mut u8,
    qkv: *mut u8,
    shape: &AppendShape,
    frequencies: Frequencies,
    offsets: &[i32],
    slots: &[i32],
) {
    let machine = Machine::current();
    // SAFETY: the caller upholds the contract; this machine supports `machine.level`.
    with_element!(element, T => unsafe {
        if !std::ptr::eq(state, out) {
            let bytes = shape.batch * shape.rows() * shape.head_dim * size_of::<T>();
            parallel_copy(state, out, bytes);
        }
        append_on::<T>(machine, out.cast(), qkv.cast(), shape, frequencies, offsets, slots)
    })
}

/// # Safety
/// The contract of [`rope_append`] applies; `out` is also the state.
pub unsafe fn append_on<T: Float>(
    machine: Machine,
    out: *mut T,
    qkv: *mut T,
    shape: &AppendShape,
    frequencies: Frequencies,
    offsets: &[i32],
    slots: &[i32],
) {
    // SAFETY: the caller upholds the contract.
    unsafe { move_on(machine, Place::State(out), qkv, shape, frequencies, offsets, slots) }
}

/// The buffers that exchange vectors with `qkv`. The forward pass moves vectors from `qkv` to a
/// `Place`, and the backward pass moves derivatives from the `Place` to `qkv`.
#[derive(Clone, Copy)]
pub enum Place<T> {
    /// The rows of a state, laid out as [`AppendShape`] says.
    State(*mut T),
    /// Queries, keys and values in separate buffers, `[batch, heads, time, head_dim]` each.
    Heads([*mut T; 3]),
}

// SAFETY: only one thread writes each vector.
unsafe impl<T> Sync for Place<T> {}

impl<T> Place<T> {
    /// The part of the buffers that belongs to one batch entry.
    fn entry(self, batch: usize, shape: &AppendShape) -> Self {
        let each = batch * shape.head_dim;
        match self {
            Self::State(state) => Self::State(state.wrapping_add(each * shape.rows())),
            Self::Heads([q, k, v]) => {
                let of = |part: *mut T, heads| part.wrapping_add(each * heads * shape.time);
                Self::Heads([of(q, shape.heads), of(k, shape.kv_heads), of(v, shape.kv_heads)])
            }
        }
    }
}

/// # Safety
/// The contract of [`rope_append`] applies, with `place` instead of the state.
pub unsafe fn move_on<T: Float>(
    machine: Machine,
    place: Place<T>,
    qkv: *mut T,
    shape: &AppendShape,
    frequencies: Frequencies,
    offsets: &[i32],
    slots: &[i32],
) {
    let position = shape.all_heads() * shape.head_dim;
    if shape.batch * shape.time * position == 0 {
        return;
    }
    let columns = if shape.traditional { shape.dims } else { shape.dims / 2 };
    let width = columns.clamp(1, COLUMNS).next_multiple_of(LANES);
    let ranges = machine.pool.ranges(shape.batch * shape.time * position);
    let run = (TABLE / width).min(shape.time.div_ceil(ranges.div_ceil(shape.batch)));
    let runs = shape.time.div_ceil(run);
    let rope = RopeShape {
        batch: shape.batch,
        heads: shape.all_heads(),
        seq: shape.time,
        head_dim: shape.head_dim,
        dims: shape.dims,
        traditional: shape.traditional,
        forward: shape.forward,
        scale: shape.scale,
    };
    let qkv = Shared(qkv);
    let place = &place;
    machine.pool.for_each(shape.batch * runs, run * position, &|tiles| {
        for tile in tiles {
            let (batch, start) = (tile / runs, tile % runs * run);
            let of_batch = |numbers: &[i32]| numbers[if numbers.len() > 1 { batch } else { 0 }];
            let kernel = Append {
                // SAFETY: the batch entry lies within both buffers.
                qkv: unsafe { qkv.get().add(batch * shape.time * position) },
                place: place.entry(batch, shape),
                shape,
                turns: Tile {
                    x: qkv.get(),
                    out: Output::near(qkv.get()),
                    shape: &rope,
                    frequencies,
                    offset: of_batch(offsets),
                    rows: 0..0,
                    positions: start..shape.time.min(start + run),
                    columns,
                },
                slot: i64::from(of_batch(slots)),
            };
            // SAFETY: the caller upholds the contract; tiles write rows of different positions.
            unsafe { machine.level.run(kernel) }
        }
    });
}

struct Append<'a, T> {
    qkv: *mut T,
    place: Place<T>,
    shape: &'a AppendShape,
    /// Computes the table of sines and cosines. Its `x`, `out` and `rows` are placeholders.
    turns: Tile<'a, T>,
    slot: i64,
}

impl<T: Float> Kernel for Append<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let mut table = Table::new();
        let shape = self.shape;
        let last_turned = shape.heads + shape.kv_heads;
        let columns = self.turns.columns;
        // SAFETY: the caller upholds the contract.
        unsafe {
            self.copy(self.first_head()..last_turned, shape.dims);
            self.copy(last_turned..shape.all_heads(), 0);
            if !shape.forward {
                self.clear_skipped();
            }
        }
        let mut start = 0;
        while start < columns {
            let block = start..columns.min(start + COLUMNS);
            let stride = block.len().next_multiple_of(LANES);
            // SAFETY: the table has room for the tile's positions at this stride and is filled
            // before it is read. Every row lies within its buffer.
            unsafe {
                self.turns.fill::<V>(&mut table, block.clone(), stride);
                let first = self.turns.positions.start;
                for times in self.turns.positions.clone().step_by(RUN) {
                    let times = times..self.turns.positions.end.min(times + RUN);
                    for head in self.first_head()..last_turned {
                        for time in times.clone() {
                            let line = (time - first) * stride;
                            let cos = table.cos.as_ptr().cast::<f32>().add(line);
                            let sin = table.sin.as_ptr().cast::<f32>().add(line);
                            let Some((from, to)) = self.vectors(head, time) else { continue };
                            self.ask(from);
                            if shape.forward && start == 0 {
                                self.multiply::<V>(from, to);
                            }
                            let scaled = shape.forward && shape.multiplier != 1.0;
                            let source = if scaled { to.cast_const() } else { from };
                            let near = Output::near(to);
                            if shape.traditional {
                                rotate_pairs::<V, T>(source, near, block.clone(), cos, sin);
                            } else {
                                let block = block.clone();
                                rotate_halves::<V, T>(source, near, block, columns, cos, sin);
                            }
                            if !shape.forward && block.end == columns {
                                self.multiply::<V>(to, to);
                                self.clear(from, shape.dims);
                            }
                        }
                    }
                }
            }
            start += COLUMNS;
        }
    }
}

impl<T: Float> Append<'_, T> {
    /// The first head to move. The state does not store queries of steps that have more than
    /// [`QUERY_POSITIONS`] positions.
    #[inline(always)]
    fn first_head(&self) -> usize {
        let stored = self.shape.time <= QUERY_POSITIONS || matches!(self.place, Place::Heads(_));
        if stored { 0 } else { self.shape.heads }
    }

    /// Returns the source and the destination of a head's vector at a position, or `None` if the
    /// state has no row for it.
    #[inline(always)]
    unsafe fn vectors(&self, head: usize, time: usize) -> Option<(*const T, *mut T)> {
        let shape = self.shape;
        if head < self.first_head() {
            return None;
        }
        let (buffer, row) = match self.place {
            Place::Heads([q, k, v]) => {
                let turned = shape.heads + shape.kv_heads;
                let (part, first) = match head {
                    _ if head < shape.heads => (q, 0),
                    _ if head < turned => (k, shape.heads),
                    _ => (v, turned),
                };
                (part, (head - first) * shape.time + time)
            }
            Place::State(state) if head < shape.heads => (state, head * shape.time + time),
            Place::State(state) => {
                let slot = usize::try_from(self.slot + time as i64).ok()?;
                if slot >= shape.capacity {
                    return None;
                }
                (state, shape.area() + (head - shape.heads) * shape.capacity + slot)
            }
        };
        // SAFETY: the row lies within the buffer of the batch entry.
        let (of_step, row) =
            unsafe { (self.of_step(head, time), buffer.add(row * shape.head_dim)) };
        Some(if shape.forward { (of_step, row) } else { (row, of_step) })
    }

    /// Clears derivatives in a state after they were moved to the step.
    #[inline(always)]
    unsafe fn clear(&self, from: *const T, count: usize) {
        if matches!(self.place, Place::State(_)) {
            // SAFETY: the elements are within the vector, which the caller is allowed to write.
            unsafe { from.cast_mut().write_bytes(0, count) }
        }
    }

    /// Returns the address of a head's vector at a position of the step.
    #[inline(always)]
    unsafe fn of_step(&self, head: usize, time: usize) -> *mut T {
        let at = (time * self.shape.all_heads() + head) * self.shape.head_dim;
        // SAFETY: the head and the position lie within the batch entry.
        unsafe { self.qkv.add(at) }
    }

    /// Clears the derivatives of step vectors that have no row in the state.
    unsafe fn clear_skipped(&self) {
        for time in self.turns.positions.clone() {
            for head in 0..self.shape.all_heads() {
                // SAFETY: the features are within the vector.
                unsafe {
                    if self.vectors(head, time).is_none() {
                        self.of_step(head, time).write_bytes(0, self.shape.head_dim);
                    }
                }
            }
        }
    }

    /// Prefetches the vector `AHEAD` heads later.
    #[inline(always)]
    fn ask(&self, from: *const T) {
        let later = from.wrapping_add(AHEAD * self.shape.head_dim);
        prefetch(later.cast(), self.shape.head_dim * size_of::<T>());
    }

    /// Multiplies the first `dims` features and writes them to `to`, unless the multiplier is 1.
    #[inline(always)]
    unsafe fn multiply<V: F32x16>(&self, from: *const T, to: *mut T) {
        if self.shape.multiplier == 1.0 {
            return;
        }
        let factor: V = T::round(V::splat(self.shape.multiplier));
        for at in (0..self.shape.dims).step_by(LANES) {
            let count = LANES.min(self.shape.dims - at);
            // SAFETY: the features are within the vector.
            unsafe {
                let x: V = T::load_first(from.add(at), count);
                T::store_first(x * factor, to.add(at), count);
            }
        }
    }

    /// Copies the features that start at `first` unchanged. The backward pass then clears them in
    /// the state.
    unsafe fn copy(&self, heads: Range<usize>, first: usize) {
        let count = self.shape.head_dim - first;
        if count == 0 {
            return;
        }
        for times in self.turns.positions.clone().step_by(RUN) {
            let times = times..self.turns.positions.end.min(times + RUN);
            for head in heads.clone() {
                for time in times.clone() {
                    // SAFETY: the features are within the vectors; the buffers do not overlap.
                    unsafe {
                        if let Some((from, to)) = self.vectors(head, time) {
                            std::ptr::copy_nonoverlapping(from.add(first), to.add(first), count);
                            if !self.shape.forward {
                                self.clear(from.add(first), count);
                            }
                        }
                    }
                }
            }
        }
    }
}
