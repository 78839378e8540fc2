//! The three steps of `decode` for one tile of keys: scores, weights and weighted values. Each step
//! is a separate function. All layouts of keys and values share the step that computes the weights.

use std::marker::PhantomData;

use super::coded::Factors;
use super::scores::{exponential, factor};
use super::source::{Codes, Rows};
use super::{Attention, DECODE_ROWS, TILE, coded, pairs, plain};
use crate::element::Float;
use crate::simd::{F32x16, Kernel, LANES};

/// A tile of keys, and some rows of a key-value head. The steps add the keys to the state of these
/// rows.
#[derive(Clone, Copy)]
pub struct Tile<'a> {
    pub call: &'a Attention,
    /// The batch and key-value head.
    pub place: (usize, usize),
    /// The first row and the number of rows, at most [`DECODE_ROWS`].
    pub rows: [usize; 2],
    /// The first key and the number of keys, at most [`TILE`].
    pub first: usize,
    pub count: usize,
    /// The query rows as floats, `q_pitch` apart.
    pub q: *const f32,
    pub q_pitch: usize,
    /// The scores, [`TILE`] for each row.
    pub scores: *mut f32,
    pub state: State,
}

/// The state of a chunk's rows: outputs of `pitch` floats each, maxima and sums.
#[derive(Clone, Copy)]
pub struct State {
    pub out: *mut f32,
    pub pitch: usize,
    pub max: *mut f32,
    pub sum: *mut f32,
}

impl Tile<'_> {
    /// The head and position of a row.
    pub fn place_of(&self, row: usize) -> (usize, usize) {
        self.call.place(self.place.1, self.rows[0] + row)
    }

    pub fn q(&self, row: usize) -> *const f32 {
        self.q.wrapping_add(row * self.q_pitch)
    }

    fn scores(&self, row: usize) -> *mut f32 {
        self.scores.wrapping_add(row * TILE)
    }

    fn out(&self, row: usize) -> *mut f32 {
        self.state.out.wrapping_add(row * self.state.pitch)
    }
}

/// Computes the scores of keys that are stored as rows of elements.
pub struct PlainScores<'a, E> {
    pub tile: Tile<'a>,
    pub k: Rows<E>,
    pub v: Rows<E>,
}

impl<E: Float> Kernel for PlainScores<'_, E> {
    const BF16: bool = E::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { tile, k, v } = self;
        let (rows, dim, pitch) = (tile.rows[1], tile.call.dim, tile.q_pitch);
        let mut row = 0;
        while row < rows {
            let (q, to) = (tile.q(row), tile.scores(row));
            // SAFETY: the caller's contract; a row has `TILE` scores.
            row += unsafe {
                match rows - row {
                    4.. if !V::SMALL => {
                        plain::scores::<V, E, 4, 4>(&k, &v, tile.count, dim, q, pitch, to)
                    }
                    2 | 3 if !V::SMALL => {
                        plain::scores::<V, E, 2, 8>(&k, &v, tile.count, dim, q, pitch, to)
                    }
                    _ => plain::scores::<V, E, 1, 16>(&k, &v, tile.count, dim, q, pitch, to),
                }
            };
        }
    }
}

/// Adds weighted values, which are stored as rows of elements.
pub struct PlainValues<'a, E> {
    pub tile: Tile<'a>,
    /// The keys of the next tile.
    pub next: Rows<E>,
    pub v: Rows<E>,
}

impl<E: Float> Kernel for PlainValues<'_, E> {
    const BF16: bool = E::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { tile, next, v } = self;
        let (rows, dim, pitch) = (tile.rows[1], tile.call.value_dim, tile.state.pitch);
        let mut row = 0;
        while row < rows {
            let (p, out) = (tile.scores(row).cast_const(), tile.out(row));
            // SAFETY: the caller's contract; a row has `TILE` weights.
            row += unsafe {
                match rows - row {
                    4.. if !V::SMALL => {
                        plain::add_values::<V, E, 4>(&next, &v, tile.count, dim, p, out, pitch)
                    }
                    2 | 3 if !V::SMALL => {
                        plain::add_values::<V, E, 2>(&next, &v, tile.count, dim, p, out, pitch)
                    }
                    _ => plain::add_values::<V, E, 1>(&next, &v, tile.count, dim, p, out, pitch),
                }
            };
        }
    }
}

/// The data from which the scores of coded keys are computed, besides the query rows as floats.
#[derive(Clone, Copy)]
pub struct CodedQueries {
    /// The sums of features, [`coded::GROUPS`] for each row.
    pub sums: *const f32,
    /// The pairs of bf16, [`pairs::PAIRS`] for each row, if codes have 4 bits and
    /// [`pairs::exact`] is true.
    pub pairs: Option<*const u32>,
}

/// Computes the scores of keys that are `BITS`-bit codes.
pub struct CodedScores<'a, const BITS: usize> {
    pub tile: Tile<'a>,
    pub k: Codes,
    pub v: Codes,
    /// The scales and biases of the keys.
    pub factors: Factors,
    pub queries: CodedQueries,
}

impl<const BITS: usize> Kernel for CodedScores<'_, BITS> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { tile, k, v, factors, queries } = self;
        let (rows, dim, count) = (tile.rows[1], tile.call.dim, tile.count);
        let kv = ([&k, &v], factors);
        let mut row = 0;
        while row < rows {
            let sums = queries.sums.wrapping_add(row * coded::GROUPS);
            let (q, to) = ((tile.q(row), tile.q_pitch), tile.scores(row));
            if const { BITS == 4 && V::DOTS_BF16 }
                && let Some(pairs) = queries.pairs
            {
                let q = (pairs.wrapping_add(row * pairs::PAIRS), tile.call.scale);
                // SAFETY: the caller's contract; a row has `TILE` scores.
                row += unsafe {
                    match rows - row {
                        4.. => pairs::scores::<V, 4>(kv, count, dim, q, sums, to),
                        2 | 3 => pairs::scores::<V, 2>(kv, count, dim, q, sums, to),
                        _ => pairs::scores::<V, 1>(kv, count, dim, q, sums, to),
                    }
                };
                continue;
            }
            // SAFETY: as above.
            row += unsafe {
                match rows - row {
                    4.. if !V::SMALL => coded::scores::<V, BITS, 4, 4>(kv, count, dim, q, sums, to),
                    2 | 3 if !V::SMALL => {
                        coded::scores::<V, BITS, 2, 8>(kv, count, dim, q, sums, to)
                    }
                    _ => coded::scores::<V, BITS, 1, 16>(kv, count, dim, q, sums, to),
                }
            };
        }
    }
}

/// Adds weighted values, which are `BITS`-bit codes.
pub struct CodedValues<'a, const BITS: usize> {
    pub tile: Tile<'a>,
    /// The keys of the next tile.
    pub next: Codes,
    pub v: Codes,
    /// The scales and biases of the values.
    pub factors: Factors,
}

impl<const BITS: usize> Kernel for CodedValues<'_, BITS> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { tile, next, v, factors } = self;
        let (rows, dim, count) = (tile.rows[1], tile.call.value_dim, tile.count);
        let next_and_v = ([&next, &v], factors);
        let mut row = 0;
        while row < rows {
            let (p, out) = (tile.scores(row).cast_const(), (tile.out(row), tile.state.pitch));
            // SAFETY: the caller's contract; a row has `TILE` weights.
            row += unsafe {
                match rows - row {
                    4.. if !V::SMALL => {
                        coded::add_values::<V, BITS, 4>(next_and_v, count, dim, p, out)
                    }
                    2 | 3 if !V::SMALL => {
                        coded::add_values::<V, BITS, 2>(next_and_v, count, dim, p, out)
                    }
                    _ => coded::add_values::<V, BITS, 1>(next_and_v, count, dim, p, out),
                }
            };
        }
    }
}

/// Turns scores into weights. Updates maxima and sums, and also the outputs of rows whose maximum
/// has grown.
pub struct Weigh<'a, T> {
    pub tile: Tile<'a>,
    pub element: PhantomData<T>,
}

impl<T: Float> Kernel for Weigh<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Tile { call, place: (batch, _), rows: [_, rows], first, count, state, .. } = self.tile;
        let blocks = count.div_ceil(LANES);
        let mut maxima = [0.0f32; DECODE_ROWS];
        // SAFETY: the caller's contract; a row has `TILE` scores.
        unsafe {
            // Compute all maxima first, because the exponentials of a row have to wait for its
            // maximum.
            for (row, largest) in maxima.iter_mut().enumerate().take(rows) {
                let scores = self.tile.scores(row);
                let (head, query) = self.tile.place_of(row);
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
                let scores = self.tile.scores(row);
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
                    for at in (0..state.pitch).step_by(LANES) {
                        let at = self.tile.out(row).add(at);
                        (V::load(at) * V::splat(factor)).store(at);
                    }
                    *max = largest;
                }
                *sum = before + total.reduce_add();
            }
        }
    }
}
