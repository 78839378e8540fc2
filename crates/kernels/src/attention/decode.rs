//! Attention with few rows: the keys are split into chunks of a fixed length, so that the result
//! does not depend on the number of threads. Each chunk writes the outputs, maxima and sums of its
//! rows.

use std::marker::PhantomData;
use std::ops::Range;

use super::combine::Combine;
use super::source::{Load, Rows, load_query};
use super::tile::{
    CodedQueries, CodedScores, CodedValues, PlainScores, PlainValues, State, Tile, Weigh,
};
use super::{Attention, DECODE_ROWS, MASKED, MAX_DIM, Mask, Source, TILE, with_scratch};
use super::{coded, pairs};
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
            let chunks =
                Chunks::<T> { call, split, partials: partials.get(), items, kind: PhantomData };
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
    kind: PhantomData<T>,
}

/// A chunk's working memory, on the stack.
#[repr(align(64))]
struct Space {
    q: [f32; DECODE_ROWS * MAX_DIM],
    scores: [f32; DECODE_ROWS * TILE],
}

/// A tile of keys or values converted to floats.
#[repr(align(64))]
struct Loaded {
    _rows: [f32; TILE * MAX_DIM],
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

impl<T: Float> Chunks<'_, T> {
    #[inline(always)]
    unsafe fn chunk<V: F32x16>(&self, item: usize, q: *mut f32, scores: *mut f32) {
        let (call, split, rows) = (self.call, self.split, self.call.rows());
        let head = item / split.chunks;
        let place = (head / call.kv_heads, head % call.kv_heads);
        let first = split.first + item % split.chunks * CHUNK;
        let keys = first..split.end.min(first + CHUNK);
        // SAFETY: the caller's contract.
        unsafe {
            let out = self.partials.add(item * split.floats(rows));
            let max = out.add(rows * split.pitch);
            let state = State { out, pitch: split.pitch, max, sum: max.add(rows) };
            std::ptr::write_bytes(out, 0, rows * (split.pitch + 2));
            for row in 0..rows {
                *max.add(row) = MASKED;
                let (head, query) = call.place(place.1, row);
                let to = q.add(row * split.q_pitch);
                load_query::<V, T>(&call.q, (place.0, head, query), call.dim, call.scale, to);
            }
            let q_pitch = split.q_pitch;
            let tiles = Tiles {
                tile: Tile { call, place, first, count: 0, q, q_pitch, scores, state },
                keys,
                element: PhantomData::<T>,
            };
            let contiguous = |source: &Source| source.rows::<T>(place.0, place.1).is_some();
            if contiguous(&call.k) && contiguous(&call.v) {
                return tiles.plain::<V>();
            }
            match (call.k.coded::<T>(place, 0), call.v.coded::<T>(place, 0)) {
                (Some((_, 4)), Some((_, 4))) => tiles.coded::<V, 4>(),
                (Some((_, 8)), Some((_, 8))) => tiles.coded::<V, 8>(),
                _ => tiles.loaded::<V>(),
            }
        }
    }
}

/// The tiles of a chunk's keys.
struct Tiles<'a, T> {
    tile: Tile<'a>,
    keys: Range<usize>,
    element: PhantomData<T>,
}

impl<'a, T: Float> Tiles<'a, T> {
    fn each(&self) -> impl Iterator<Item = Tile<'a>> + use<'a, T> {
        let (tile, end) = (self.tile, self.keys.end);
        let starts = self.keys.clone().step_by(TILE);
        starts.map(move |first| Tile { first, count: TILE.min(end - first), ..tile })
    }

    /// Adds keys and values that are stored as rows of elements.
    #[inline(always)]
    unsafe fn plain<V: F32x16>(&self) {
        let Attention { k, v, .. } = self.tile.call;
        let (batch, head) = self.tile.place;
        for tile in self.each() {
            let rows =
                |source: &Source| source.rows::<T>(batch, head).map(|rows| rows.from(tile.first));
            let (Some(k), Some(v)) = (rows(k), rows(v)) else { return };
            // SAFETY: the caller's contract.
            unsafe {
                V::part(PlainScores { tile, k, v });
                V::part(Weigh::<T> { tile, element: PhantomData });
                V::part(PlainValues { tile, k, v });
            }
        }
    }

    /// Adds keys and values that are `BITS`-bit codes.
    #[inline(always)]
    unsafe fn coded<V: F32x16, const BITS: usize>(&self) {
        let (call, place) = (self.tile.call, self.tile.place);
        let mut sums = [0.0f32; DECODE_ROWS * coded::GROUPS];
        let mut pairs = std::mem::MaybeUninit::<[u32; DECODE_ROWS * pairs::PAIRS]>::uninit();
        let pairs = pairs.as_mut_ptr().cast::<u32>();
        for tile in self.each() {
            let (k, v) =
                (call.k.coded::<T>(place, tile.first), call.v.coded::<T>(place, tile.first));
            let (Some((k, _)), Some((v, _))) = (k, v) else { return };
            let (sums, queries) = (sums.as_mut_ptr(), CodedQueries { sums: sums.as_ptr(), pairs });
            // SAFETY: the caller's contract; both arrays have room for all rows.
            unsafe {
                if tile.first == self.keys.start {
                    for row in 0..call.rows() {
                        let to = sums.add(row * coded::GROUPS);
                        coded::sums::<V>(tile.q(row), call.dim, k.group, to);
                        if BITS == 4 && pairs::exact::<V, T>(call.dim) {
                            let (head, query) = call.place(place.1, row);
                            let q = call.q.at(place.0, head, query);
                            let to = pairs.add(row * pairs::PAIRS);
                            pairs::pair_query::<T>(q, call.q.strides[3], call.dim, to);
                        }
                    }
                }
                V::part(CodedScores::<T, BITS> { tile, k, v, queries });
                V::part(Weigh::<T> { tile, element: PhantomData });
                V::part(CodedValues::<T, BITS> { tile, k, v });
            }
        }
    }

    /// Adds any keys and values, which are first converted to floats.
    #[inline(always)]
    unsafe fn loaded<V: F32x16>(&self) {
        let mut loaded = [const { std::mem::MaybeUninit::<Loaded>::uninit() }; 2];
        let [k, v] = loaded.each_mut().map(|tile| tile.as_mut_ptr().cast::<f32>());
        let Tile { call, place, q_pitch, state, .. } = self.tile;
        for tile in self.each() {
            let (first, count) = (tile.first, tile.count);
            // SAFETY: the caller's contract; there is room for a tile of rows.
            unsafe {
                let load = |source, dim, out, pitch| Load::<T> {
                    source,
                    place,
                    first,
                    count,
                    dim,
                    out,
                    pitch,
                    element: PhantomData,
                };
                V::part(load(&call.k, call.dim, k, q_pitch));
                V::part(load(&call.v, call.value_dim, v, state.pitch));
                let rows = |data: *mut f32, pitch| Rows {
                    data: data.cast_const(),
                    stride: pitch as isize,
                };
                let (k, v) = (rows(k, q_pitch), rows(v, state.pitch));
                V::part(PlainScores { tile, k, v });
                V::part(Weigh::<T> { tile, element: PhantomData });
                V::part(PlainValues { tile, k, v });
            }
        }
    }
}
