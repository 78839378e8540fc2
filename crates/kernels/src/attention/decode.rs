//! Attention for a few query rows, such as the new tokens of a decoding step. The keys are split
//! into chunks of a fixed length, so that the result does not depend on the number of threads. Each
//! chunk writes the outputs, maxima and sums of its rows.

use std::marker::PhantomData;
use std::ops::Range;

use super::coded::{self, Factors};
use super::combine::{CHUNK, Combine, Split};
use super::pairs;
use super::source::{Load, Rows, load_query};
use super::tile::{
    CodedQueries, CodedScores, CodedValues, PlainScores, PlainValues, State, Tile, Weigh,
};
use super::{Attention, DECODE_ROWS, MASKED, MAX_DIM, Source, TILE, with_scratch};
use crate::element::Float;
use crate::simd::{F32x16, Kernel};
use crate::{Machine, Shared};

/// The time to read the first key and value of a chunk, in tenths of a nanosecond. These reads
/// usually go to memory, and to pages that no core has accessed recently. If products fill the
/// caches between calls, eight chunks of a few keys take 4 µs on one core of Zen 4, and 20 µs on
/// one core of a Xeon.
const FIRST: usize = 10_000;

/// The start of a tile of keys: the batch and the key-value head, then the first key.
type Start = ((usize, usize), usize);

/// # Safety
/// The contract of [`super::attention`] holds.
pub unsafe fn run<T: Float>(machine: Machine, call: &Attention, out: Shared<T>) {
    let split = Split::of(call);
    let rows = call.rows();
    let heads = call.batch * call.kv_heads;
    let items = heads * split.chunks;
    with_scratch(items * split.floats(rows), |partials| {
        let partials = Shared(partials);
        // For each feature of a key or value, the kernel reads one number, usually from memory, and
        // multiplies it once for each row.
        let work = FIRST + CHUNK.min(call.keys) * (call.dim + call.value_dim) * (12 + rows) / 8;
        machine.pool.for_each(items, work, &|items| {
            let (partials, out) = (partials.get(), out.get());
            let chunks = Chunks::<T> { call, split, partials, out, items };
            // SAFETY: the caller's contract; each chunk has a separate part of `partials`, or
            // of `out` if it has all keys of a head.
            unsafe { machine.level.run(chunks) }
        });
        if split.chunks == 1 {
            return;
        }
        let work = rows * split.chunks * (2 * split.pitch + 200);
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
    out: *mut T,
    items: Range<usize>,
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
        let Self { call, split, partials, out, .. } = self;
        for item in self.items.clone() {
            // SAFETY: the caller's contract; the space is written before it is read.
            unsafe {
                let q = (&raw mut (*space).q).cast::<f32>();
                let scores = (&raw mut (*space).scores).cast::<f32>();
                self.chunk::<V>(item, q, scores);
                if split.chunks == 1 {
                    V::part(Combine { call, split, partials, out, heads: item..item + 1 });
                }
            }
        }
    }
}

impl<T: Float> Chunks<'_, T> {
    /// Where a chunk starts.
    fn start(&self, item: usize) -> Start {
        let Self { call, split, .. } = self;
        let (head, chunk) = (item / split.chunks, item % split.chunks);
        ((head / call.kv_heads, head % call.kv_heads), split.keys(chunk).start)
    }

    #[inline(always)]
    unsafe fn chunk<V: F32x16>(&self, item: usize, q: *mut f32, scores: *mut f32) {
        let (call, split, all) = (self.call, self.split, self.call.rows());
        let (place, first) = self.start(item);
        // SAFETY: the caller's contract.
        unsafe {
            let out = self.partials.add(item * split.floats(all));
            let max = out.add(all * split.pitch);
            std::ptr::write_bytes(out, 0, all * (split.pitch + 2));
            // Compute one block of rows after another, while the keys and values of the chunk stay
            // in a cache.
            for top in (0..all).step_by(DECODE_ROWS) {
                let rows = top..all.min(top + DECODE_ROWS);
                let max = max.add(top);
                let state = State {
                    out: out.add(top * split.pitch),
                    pitch: split.pitch,
                    max,
                    sum: max.add(all),
                };
                for (i, row) in rows.clone().enumerate() {
                    *max.add(i) = MASKED;
                    let (head, query) = call.place(place.1, row);
                    let to = q.add(i * split.q_pitch);
                    load_query::<V, T>(&call.q, (place.0, head, query), call.dim, call.scale, to);
                }
                let next = match rows.end == all {
                    true => self.start((item + 1).min(self.items.end - 1)),
                    false => (place, first),
                };
                let (q_pitch, rows) = (split.q_pitch, [top, rows.len()]);
                Tiles {
                    tile: Tile { call, place, rows, first, count: 0, q, q_pitch, scores, state },
                    keys: split.keys(item % split.chunks),
                    next,
                    element: PhantomData::<T>,
                }
                .add::<V>();
            }
        }
    }
}

/// The tiles of a chunk's keys.
struct Tiles<'a, T> {
    tile: Tile<'a>,
    keys: Range<usize>,
    /// Where the next chunk starts.
    next: Start,
    element: PhantomData<T>,
}

impl<'a, T: Float> Tiles<'a, T> {
    #[inline(always)]
    unsafe fn add<V: F32x16>(&self) {
        let Tile { call, place, .. } = self.tile;
        // SAFETY: the caller's contract.
        unsafe {
            let contiguous = |source: &Source| source.rows::<T>(place.0, place.1).is_some();
            if contiguous(&call.k) && contiguous(&call.v) {
                return self.plain::<V>();
            }
            match (call.k.coded::<T>(place, 0), call.v.coded::<T>(place, 0)) {
                (Some((_, 4)), Some((_, 4))) => self.coded::<V, 4>(),
                (Some((_, 8)), Some((_, 8))) => self.coded::<V, 8>(),
                _ => self.loaded::<V>(),
            }
        }
    }

    fn each(&self) -> impl Iterator<Item = Tile<'a>> + use<'a, T> {
        let (tile, end) = (self.tile, self.keys.end);
        let starts = self.keys.clone().step_by(TILE);
        starts.map(move |first| Tile { first, count: TILE.min(end - first), ..tile })
    }

    /// Where the next tile starts.
    fn after(&self, tile: &Tile) -> Start {
        let end = tile.first + tile.count;
        if end < self.keys.end { (tile.place, end) } else { self.next }
    }

    /// Processes keys and values that are stored as rows of elements.
    #[inline(always)]
    unsafe fn plain<V: F32x16>(&self) {
        let Attention { k, v, .. } = self.tile.call;
        for tile in self.each() {
            let rows = |source: &Source, ((batch, head), first): Start| {
                source.rows::<T>(batch, head).map(|rows| rows.from(first))
            };
            let (here, after) = ((tile.place, tile.first), self.after(&tile));
            let (Some(next), Some(k), Some(v)) = (rows(k, after), rows(k, here), rows(v, here))
            else {
                return;
            };
            // SAFETY: the caller's contract.
            unsafe {
                V::part(PlainScores { tile, k, v });
                V::part(Weigh::<T> { tile, element: PhantomData });
                V::part(PlainValues { tile, next, v });
            }
        }
    }

    /// Processes keys and values that are `BITS`-bit codes.
    #[inline(always)]
    unsafe fn coded<V: F32x16, const BITS: usize>(&self) {
        let (call, place) = (self.tile.call, self.tile.place);
        let mut sums = [0.0f32; DECODE_ROWS * coded::GROUPS];
        let mut pairs = std::mem::MaybeUninit::<[u32; DECODE_ROWS * pairs::PAIRS]>::uninit();
        let pairs = pairs.as_mut_ptr().cast::<u32>();
        let pairs = (BITS == 4 && pairs::exact::<V, T>(call.dim)).then_some(pairs);
        let (mut of_k, mut of_v) = (coded::Room::uninit(), coded::Room::uninit());
        for tile in self.each() {
            let (place_after, first_after) = self.after(&tile);
            let next = call.k.coded::<T>(place_after, first_after);
            let (k, v) =
                (call.k.coded::<T>(place, tile.first), call.v.coded::<T>(place, tile.first));
            let (Some((next, _)), Some((k, _)), Some((v, _))) = (next, k, v) else { return };
            let sums = sums.as_mut_ptr();
            let queries = CodedQueries { sums, pairs: pairs.map(<*mut u32>::cast_const) };
            // SAFETY: the caller's contract; `sums` and `pairs` have room for all rows.
            unsafe {
                if tile.first == self.keys.start {
                    for row in 0..tile.rows[1] {
                        let to = sums.add(row * coded::GROUPS);
                        coded::sums::<V>(tile.q(row), call.dim, k.codes.group, to);
                        if let Some(pairs) = pairs {
                            let (head, query) = tile.place_of(row);
                            let q = call.q.at(place.0, head, query);
                            let to = pairs.add(row * pairs::PAIRS);
                            pairs::pair_query::<T>(q, call.q.strides[3], call.dim, to);
                        }
                    }
                }
                let factors = Factors::of::<V, T>(&k, [tile.count, call.dim], &mut of_k);
                let of_v = Factors::of::<V, T>(&v, [tile.count, call.value_dim], &mut of_v);
                let (next, k, v) = (next.codes, k.codes, v.codes);
                V::part(CodedScores::<BITS> { tile, k, v, factors, queries });
                V::part(Weigh::<T> { tile, element: PhantomData });
                V::part(CodedValues::<BITS> { tile, next, v, factors: of_v });
            }
        }
    }

    /// Processes keys and values of any layout, after converting them to floats.
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
                V::part(PlainValues { tile, next: k, v });
            }
        }
    }
}
