//! Splits the keys of a head into chunks, and combines the partial results of the chunks into the
//! output of the head.

use std::ops::Range;

use super::scores::factor;
use super::{Attention, MAX_DIM, Mask, TILE};
use crate::element::Float;
use crate::simd::{F32x16, Kernel, LANES};

/// The number of keys in a chunk. A chunk is long enough that its work outweighs its overhead, and
/// short enough that a long cache is divided evenly among the threads.
pub const CHUNK: usize = 256;

/// How a call is split into chunks, and the layout of a chunk's partial results.
#[derive(Clone, Copy)]
pub struct Split {
    /// The first key to process, rounded down to the start of a tile. `end` is one past the last
    /// key.
    first: usize,
    end: usize,
    pub chunks: usize,
    /// The number of floats in a row's output, with padding.
    pub pitch: usize,
    /// The number of floats in a query row, with padding.
    pub q_pitch: usize,
}

impl Split {
    pub fn of(call: &Attention) -> Self {
        let (first, end) = match call.mask {
            Mask::None => call.span(0, call.queries - 1),
            // If all keys of a row are masked, the row weighs all keys equally, so it needs all of
            // them.
            _ => (0, call.keys),
        };
        let (pitch, q_pitch) = (call.value_pitch(), call.query_pitch());
        let first = first / TILE * TILE;
        Self { first, end, chunks: end.div_ceil(CHUNK) - first / CHUNK, pitch, q_pitch }
    }

    /// The range of keys in a chunk. All chunks except the first begin at multiples of [`CHUNK`].
    pub fn keys(&self, chunk: usize) -> Range<usize> {
        let start = (self.first / CHUNK + chunk) * CHUNK;
        self.first.max(start)..self.end.min(start + CHUNK)
    }

    /// The number of floats in a chunk's results: outputs, then maxima, then sums.
    pub fn floats(&self, rows: usize) -> usize {
        (rows * (self.pitch + 2)).next_multiple_of(LANES)
    }
}

/// Combines the chunks' results for the rows of each head.
pub struct Combine<'a, T> {
    pub call: &'a Attention,
    pub split: Split,
    pub partials: *const f32,
    pub out: *mut T,
    pub heads: Range<usize>,
}

impl<T: Float> Kernel for Combine<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let (call, split) = (self.call, self.split);
        let (rows, pitch) = (call.rows(), split.pitch);
        for item in self.heads.clone() {
            for row in 0..rows {
                let (head, query) = call.place(item % call.kv_heads, row);
                let at = call.result(item / call.kv_heads, head, query);
                // SAFETY: the caller's contract; the chunks have written the partial results.
                unsafe {
                    let chunk = |i: usize| {
                        self.partials.add((item * split.chunks + i) * split.floats(rows))
                    };
                    let max = |i: usize| *chunk(i).add(rows * pitch + row);
                    let (mut largest, weight) = call.start::<T>(head);
                    let sink = largest;
                    for i in 0..split.chunks {
                        largest = max(i).max(largest);
                    }
                    let mut sum = weight * factor::<V, T>(sink - largest);
                    for i in 0..split.chunks {
                        let weight = *chunk(i).add(rows * pitch + rows + row);
                        sum += weight * factor::<V, T>(max(i) - largest);
                    }
                    // If all scores of a row are -inf and there are no sinks, this divides 0 by 0,
                    // as MLX does.
                    let scale = 1.0 / sum;
                    let mut total = [0.0f32; MAX_DIM];
                    for i in 0..split.chunks {
                        let factor = V::splat(factor::<V, T>(max(i) - largest));
                        for at in (0..pitch).step_by(LANES) {
                            let total = total.as_mut_ptr().add(at);
                            V::load(chunk(i).add(row * pitch + at))
                                .mul_add(factor, V::load(total))
                                .store(total);
                        }
                    }
                    let out = self.out.add(at);
                    for at in (0..call.value_dim).step_by(LANES) {
                        let lanes = V::load(total.as_ptr().add(at)) * V::splat(scale);
                        let count = LANES.min(call.value_dim - at);
                        if count == LANES {
                            T::store(lanes, out.add(at));
                        } else {
                            T::store_first(lanes, out.add(at), count);
                        }
                    }
                }
            }
        }
    }
}
