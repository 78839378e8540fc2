//! The buffers of a job of the backward pass.

use super::Attention;
use super::block::ROWS;
use super::product::{ADD_ROWS, SET_ROWS};
use crate::simd::LANES;

/// The keys of a tile, a multiple of the rows of all tiles of a product.
pub const KEYS: usize = 48;
const _: () = assert!(KEYS.is_multiple_of(SET_ROWS) && KEYS.is_multiple_of(2 * ADD_ROWS));

/// A job's buffers.
#[derive(Clone, Copy)]
pub struct Space {
    /// The scaled queries, and the cotangents, stored by rows.
    pub q: *mut f32,
    pub g: *mut f32,
    /// The scaled queries and the cotangents transposed: stored by features.
    pub turned_q: *mut f32,
    pub turned_g: *mut f32,
    /// The derivatives in the queries, before they are multiplied by the scale.
    pub dq: *mut f32,
    /// The keys or the values of a tile.
    pub tile: *mut f32,
    /// Stored by keys: scores, derivatives in weights, and derivatives of the soft cap, if there is
    /// one.
    pub scores: *mut f32,
    pub grads: *mut f32,
    pub slopes: *mut f32,
    /// Weights, and derivatives in scores, of one tile, stored by keys.
    pub weights: *mut f32,
    pub of_scores: *mut f32,
    /// For each row: the largest score; the sum of the weights, later its inverse; and the sum of
    /// the products of weights and their derivatives.
    pub max: *mut f32,
    pub sum: *mut f32,
    pub delta: *mut f32,
    end: *mut f32,
    pub key_pitch: usize,
    pub pitch: usize,
}

impl Space {
    /// Places the buffers in the memory that begins at `base`.
    pub fn at(call: &Attention, base: *mut f32) -> Self {
        // With an odd number of cache lines, the rows spread over all sets of a cache.
        let (key_pitch, pitch) = (call.query_pitch() | LANES, call.value_pitch() | LANES);
        let mut end = base;
        let mut take = |floats: usize| {
            let start = end;
            end = end.wrapping_add(floats);
            start
        };
        let strip = call.keys.next_multiple_of(KEYS) * ROWS;
        // The products may read a few rows past the last row.
        let of_tile = KEYS * ROWS + LANES;
        Self {
            q: take(ROWS * key_pitch),
            g: take(ROWS * pitch),
            turned_q: take(ROWS * key_pitch),
            turned_g: take(ROWS * pitch),
            dq: take(ROWS * key_pitch),
            tile: take(KEYS * key_pitch.max(pitch)),
            scores: take(strip),
            grads: take(strip),
            slopes: take(if call.soft_cap > 0.0 { strip } else { 0 }),
            weights: take(of_tile),
            of_scores: take(of_tile),
            max: take(ROWS),
            sum: take(ROWS),
            delta: take(ROWS),
            end: take(0),
            key_pitch,
            pitch,
        }
    }

    pub fn floats(call: &Attention) -> usize {
        Self::at(call, std::ptr::null_mut()).end.addr() / size_of::<f32>()
    }
}
