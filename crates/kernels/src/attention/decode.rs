//! Attention with few rows: the keys are split into chunks of a fixed length, so that the result
//! does not depend on the number of threads. Each chunk writes the outputs, maxima and sums of its
//! rows.

use std::ops::Range;

use super::coded;
use super::combine::Combine;
use super::pairs;
use super::plain;
use super::scores::{exponential, factor};
use super::source::{Rows, load_query};
use super::{Attention, DECODE_ROWS, MASKED, MAX_DIM, Mask, TILE, with_scratch};
use crate::element::Float;
use crate::simd::{F32x16, Kernel, LANES};
use crate::{Machine, Shared};

/// Keys per chunk: enough to hide its overhead, few enough to share a long cache evenly.
const CHUNK: usize = 256;

/// How a call is split into chunks, and the layout of a chunk's partial results.
#[derive(Clone, Copy)]
pub struct Split {
    first: usize,
    end: usize,
    pub chunks: usize,
    /// Floats of a row's output.
    pub pitch: usize,
    /// Floats of a query.
    q_pitch: usize,
}

impl Split {
    fn of(call: &Attention) -> Self {
        let (first, end) = match call.mask {
            Mask::None => call.span(0, call.queries - 1),
            // A row whose keys are all masked weighs all of them equally.
            _ => (0, call.keys),
        };
        let (pitch, q_pitch) = (call.value_pitch(), call.query_pitch());
        Self { first, end, chunks: (end - first).div_ceil(CHUNK), pitch, q_pitch }
    }

    /// Floats of a chunk's results: outputs, then maxima, then sums.
    pub fn floats(&self, rows: usize) -> usize {
        (rows * (self.pitch + 2)).next_multiple_of(LANES)
    }
}

/// # Safety
/// The contract of [`super::attention`].
pub unsafe fn run<T: Float>(machine: Machine, call: &Attention, out: Shared<T>) {
    let split = Split::of(call);
    let rows = call.rows();
    let heads = call.batch * call.kv_heads;
    let items = heads * split.chunks;
    with_scratch(items * split.floats(rows), |partials| {
        let partials = Shared(partials);
        // Each feature costs a read of a key or a value, and a multiplication for each row.
        let work = CHUNK.min(call.keys) * (call.dim + call.value_dim) * (2 + rows) / 8;
        machine.pool.for_each(items, work, &|items| {
            let chunks = Chunks::<T> {
                call,
                split,
                partials: partials.get(),
                items,
                kind: std::marker::PhantomData,
            };
            // SAFETY: the caller's contract; each item writes its own part of `partials`.
            unsafe { machine.level.run(chunks) }
        });
        let work = 2 * rows * split.chunks * split.pitch;
        machine.pool.for_each(heads, work, &|heads| {
            let combine = Combine { call, split, partials: partials.get(), out: out.get(), heads };
            // SAFETY: the partials are complete; the heads have disjoint rows in `out`.
            unsafe { machine.level.run(combine) }
        });
    });
}

struct Chunks<'a, T> {
    call: &'a Attention,
    split: Split,
    partials: *mut f32,
    items: Range<usize>,
    kind: std::marker::PhantomData<T>,
}

/// A chunk's working memory, on the stack.
#[repr(align(64))]
struct Space {
    q: [f32; DECODE_ROWS * MAX_DIM],
    scores: [f32; DECODE_ROWS * TILE],
}

/// A tile of keys or values converted to floats, if they are not stored as rows of elements.
#[repr(align(64))]
struct Staged {
    rows: [f32; TILE * MAX_DIM],
}

impl<T: Float> Kernel for Chunks<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let mut space = std::mem::MaybeUninit::<Space>::uninit();
        let space = space.as_mut_ptr();
        for item in self.items.clone() {
            // SAFETY: the caller's contract; the space is written before it is read.
            unsafe {
                let q = (&raw mut (*space).q).cast::<f32>();
                let scores = (&raw mut (*space).scores).cast::<f32>();
                self.chunk::<V>(item, q, scores);
            }
        }
    }
}

/// The running state of a chunk's rows.
struct State {
    out: *mut f32,
    max: *mut f32,
    sum: *mut f32,
}

impl<T: Float> Chunks<'_, T> {
    #[inline(always)]
    unsafe fn chunk<V: F32x16>(&self, item: usize, q: *mut f32, scores: *mut f32) {
        let (call, split, rows) = (self.call, self.split, self.call.rows());
        let head = item / split.chunks;
        let place = (head / call.kv_heads, head % call.kv_heads);
        let first = split.first + item % split.chunks * CHUNK;
        let end = split.end.min(first + CHUNK);
        // SAFETY: the caller's contract.
        unsafe {
            let out = self.partials.add(item * split.floats(rows));
            let max = out.add(rows * split.pitch);
            let state = State { out, max, sum: max.add(rows) };
            std::ptr::write_bytes(out, 0, rows * (split.pitch + 2));
            for row in 0..rows {
                *max.add(row) = MASKED;
                let (head, query) = call.place(place.1, row);
                let to = q.add(row * split.q_pitch);
                load_query::<V, T>(&call.q, (place.0, head, query), call.dim, call.scale, to);
            }
            let keys = call.k.rows::<T>(place.0, place.1);
            let values = call.v.rows::<T>(place.0, place.1);
            let (Some(keys), Some(values)) = (keys, values) else {
                let coded = (call.k.coded::<T>(place, 0), call.v.coded::<T>(place, 0));
                return match coded {
                    (Some((_, 4)), Some((_, 4))) => {
                        self.coded::<V, 4>(place, first..end, q, scores, &state)
                    }
                    (Some((_, 8)), Some((_, 8))) => {
                        self.coded::<V, 8>(place, first..end, q, scores, &state)
                    }
                    _ => self.staged::<V>(place, first..end, q, scores, &state),
                };
            };
            for at in (first..end).step_by(TILE) {
                let count = TILE.min(end - at);
                let k = Rows { data: keys.at(at), stride: keys.stride };
                let v = Rows { data: values.at(at), stride: values.stride };
                self.tile::<V, T>(&k, &v, place, (at, count), q, scores, &state);
            }
        }
    }

    /// Processes a chunk whose keys and values are `BITS`-bit codes.
    #[inline(always)]
    unsafe fn coded<V: F32x16, const BITS: usize>(
        &self,
        place: (usize, usize),
        range: Range<usize>,
        q: *const f32,
        scores: *mut f32,
        state: &State,
    ) {
        let (call, rows) = (self.call, self.call.rows());
        let (pitch, q_pitch) = (self.split.pitch, self.split.q_pitch);
        let mut q_sums = [0.0f32; DECODE_ROWS * coded::GROUPS];
        let mut q_pairs = std::mem::MaybeUninit::<[u32; DECODE_ROWS * pairs::PAIRS]>::uninit();
        let q_pairs = q_pairs.as_mut_ptr().cast::<u32>();
        let paired = BITS == 4 && pairs::exact::<V, T>(call.dim);
        if paired {
            for row in 0..rows {
                let (head, query) = call.place(place.1, row);
                let (from, to) =
                    (call.q.at(place.0, head, query), q_pairs.wrapping_add(row * pairs::PAIRS));
                // SAFETY: the caller's contract; a row has room for pairs of the largest dimension.
                unsafe { pairs::pair_query::<T>(from, call.q.strides[3], call.dim, to) };
            }
        }
        for at in range.clone().step_by(TILE) {
            let count = TILE.min(range.end - at);
            let keys = call.k.coded::<T>(place, at);
            let values = call.v.coded::<T>(place, at);
            let (Some((k, _)), Some((v, _))) = (keys, values) else { return };
            // SAFETY: the caller's contract.
            unsafe {
                let mut row = 0;
                while row < rows {
                    let sums = q_sums.as_mut_ptr().add(row * coded::GROUPS);
                    if at == range.start {
                        for i in row..rows.min(row + 4) {
                            let sums = sums.add((i - row) * coded::GROUPS);
                            coded::sums::<V>(q.add(i * q_pitch), call.dim, k.group, sums);
                        }
                    }
                    let (q, to, dim) =
                        ((q.add(row * q_pitch), q_pitch), scores.add(row * TILE), call.dim);
                    if paired {
                        let q = (q_pairs.add(row * pairs::PAIRS).cast_const(), call.scale);
                        row += match rows - row {
                            4.. if !V::SMALL => {
                                pairs::scores::<V, T, 4>([&k, &v], count, dim, q, sums, to)
                            }
                            2 | 3 if !V::SMALL => {
                                pairs::scores::<V, T, 2>([&k, &v], count, dim, q, sums, to)
                            }
                            _ => pairs::scores::<V, T, 1>([&k, &v], count, dim, q, sums, to),
                        };
                        continue;
                    }
                    row += match rows - row {
                        4.. if !V::SMALL => {
                            coded::scores::<V, T, BITS, 4, 4>([&k, &v], count, dim, q, sums, to)
                        }
                        2 | 3 if !V::SMALL => {
                            coded::scores::<V, T, BITS, 2, 8>([&k, &v], count, dim, q, sums, to)
                        }
                        _ => coded::scores::<V, T, BITS, 1, 16>([&k, &v], count, dim, q, sums, to),
                    };
                }
                self.weigh::<V>(place, (at, count), scores, state);
                let mut row = 0;
                while row < rows {
                    let (p, out) = (scores.add(row * TILE), (state.out.add(row * pitch), pitch));
                    let dim = call.value_dim;
                    row += match rows - row {
                        4.. if !V::SMALL => {
                            coded::add_values::<V, T, BITS, 4>([&k, &v], count, dim, p, out)
                        }
                        2 | 3 if !V::SMALL => {
                            coded::add_values::<V, T, BITS, 2>([&k, &v], count, dim, p, out)
                        }
                        _ => coded::add_values::<V, T, BITS, 1>([&k, &v], count, dim, p, out),
                    };
                }
            }
        }
    }

    /// Processes a chunk whose keys and values are first converted to floats, tile by tile.
    #[inline(always)]
    unsafe fn staged<V: F32x16>(
        &self,
        place: (usize, usize),
        range: Range<usize>,
        q: *const f32,
        scores: *mut f32,
        state: &State,
    ) {
        let mut staged = [const { std::mem::MaybeUninit::<Staged>::uninit() }; 2];
        // SAFETY: only the address of the rows is taken.
        let rows = |tile: *mut Staged| unsafe { (&raw mut (*tile).rows).cast::<f32>() };
        let [k, v] = staged.each_mut().map(|tile| rows(tile.as_mut_ptr()));
        let (call, pitch, q_pitch) = (self.call, self.split.pitch, self.split.q_pitch);
        for at in range.clone().step_by(TILE) {
            let count = TILE.min(range.end - at);
            // SAFETY: the caller's contract; a tile has room for that many rows.
            unsafe {
                call.k.load::<V, T>(place, (at, count), call.dim, k, q_pitch);
                call.v.load::<V, T>(place, (at, count), call.value_dim, v, pitch);
                let rows = |data, pitch| Rows::<f32> { data, stride: pitch as isize };
                let (k, v) = (rows(k.cast_const(), q_pitch), rows(v.cast_const(), pitch));
                self.tile::<V, f32>(&k, &v, place, (at, count), q, scores, state);
            }
        }
    }

    /// Adds keys `first..first + count` to the state; `k` and `v` begin at `first`.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    unsafe fn tile<V: F32x16, E: Float>(
        &self,
        k: &Rows<E>,
        v: &Rows<E>,
        place: (usize, usize),
        (first, count): (usize, usize),
        q: *const f32,
        scores: *mut f32,
        state: &State,
    ) {
        let (call, rows) = (self.call, self.call.rows());
        let (pitch, q_pitch) = (self.split.pitch, self.split.q_pitch);
        // SAFETY: the caller's contract; a row has `TILE` scores.
        unsafe {
            let mut row = 0;
            while row < rows {
                let (q, scores) = (q.add(row * q_pitch), scores.add(row * TILE));
                row += match rows - row {
                    4.. if !V::SMALL => {
                        plain::scores::<V, E, 4, 4>(k, v, count, call.dim, q, q_pitch, scores)
                    }
                    2 | 3 if !V::SMALL => {
                        plain::scores::<V, E, 2, 8>(k, v, count, call.dim, q, q_pitch, scores)
                    }
                    _ => plain::scores::<V, E, 1, 16>(k, v, count, call.dim, q, q_pitch, scores),
                };
            }
            self.weigh::<V>(place, (first, count), scores, state);
            let mut row = 0;
            while row < rows {
                let (p, out) = (scores.add(row * TILE), state.out.add(row * pitch));
                row += match rows - row {
                    4.. if !V::SMALL => {
                        plain::add_values::<V, E, 4>(k, v, count, call.value_dim, p, out, pitch)
                    }
                    2 | 3 if !V::SMALL => {
                        plain::add_values::<V, E, 2>(k, v, count, call.value_dim, p, out, pitch)
                    }
                    _ => plain::add_values::<V, E, 1>(k, v, count, call.value_dim, p, out, pitch),
                };
            }
        }
    }

    /// Turns the scores of keys `first..first + count` into weights. Updates maxima and sums, and
    /// the outputs of rows whose maximum has grown.
    #[inline(always)]
    unsafe fn weigh<V: F32x16>(
        &self,
        (batch, kv_head): (usize, usize),
        (first, count): (usize, usize),
        scores: *mut f32,
        state: &State,
    ) {
        let (call, rows, pitch) = (self.call, self.call.rows(), self.split.pitch);
        let blocks = count.div_ceil(LANES);
        let mut maxima = [0.0f32; DECODE_ROWS];
        // SAFETY: the caller's contract; a row has `TILE` scores.
        unsafe {
            // Compute all maxima first, since the exponentials of a row wait for its maximum.
            for (row, largest) in maxima.iter_mut().enumerate().take(rows) {
                let scores = scores.add(row * TILE);
                let (head, query) = call.place(kv_head, row);
                call.finish::<V, T>(scores, (batch, head, query), (first, count));
                // Lanes past the last key get no weight.
                let last = scores.add((blocks - 1) * LANES);
                let kept = count - (blocks - 1) * LANES;
                V::load(last).keep_first(kept, f32::NEG_INFINITY).store(last);
                let mut lanes = V::splat(*state.max.add(row));
                for block in 0..blocks {
                    lanes = V::load(scores.add(block * LANES)).max(lanes);
                }
                *largest = lanes.reduce_max();
            }
            for (row, &largest) in maxima.iter().enumerate().take(rows) {
                let scores = scores.add(row * TILE);
                let (max, sum) = (state.max.add(row), state.sum.add(row));
                let mut total = V::splat(0.0);
                for block in 0..blocks {
                    let at = scores.add(block * LANES);
                    let weights = exponential::<V, T>(V::load(at) - V::splat(largest));
                    weights.store(at);
                    total = total + weights;
                }
                let mut before = *sum;
                if largest != *max {
                    let factor = factor::<V, T>(*max - largest);
                    before *= factor;
                    for at in (0..pitch).step_by(LANES) {
                        let at = state.out.add(row * pitch + at);
                        (V::load(at) * V::splat(factor)).store(at);
                    }
                    *max = largest;
                }
                *sum = before + total.reduce_add();
            }
        }
    }
}
