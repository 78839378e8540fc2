//! The memory buffers that a job of the backward pass uses.

use super::Attention;
use super::block::ROWS;
use super::product::{ADD_ROWS, SET_ROWS};
use crate::simd::LANES;

/// The number of keys in a tile. It is a multiple of the number of rows in each kind of tile in a
/// product.
pub const KEYS: usize = 48;
const _: () = assert!(KEYS.is_multiple_of(SET_ROWS) && KEYS.is_multiple_of(2 * ADD_ROWS));

/// A job's buffers.
#[derive(Clone, Copy)]
pub struct Space {
    /// The scaled queries `q` and the cotangents `g`, stored row by row.
    pub q: *mut f32,
    pub g: *mut f32,
    /// The transposed scaled queries and cotangents, stored feature by feature.
    pub turned_q: *mut f32,
    pub turned_g: *mut f32,
    /// The derivatives with respect to the queries, before the multiplication by the scale.
    pub dq: *mut f32,
    /// The keys of a tile, or its values.
    pub tile: *mut f32,
    /// The scores, the derivatives with respect to weights, and the derivatives of the soft cap if
    /// there is one. All are stored key by key.
    pub scores: *mut f32,
    pub grads: *mut f32,
    pub slopes: *mut f32,
    /// The weights of one tile, and the derivatives with respect to its scores, stored key by key.
    pub weights: *mut f32,
    pub of_scores: *mut f32,
    /// One number per row: `max` is the largest score. `sum` is the sum of the weights, and later
    /// its inverse. `delta` is the sum of the products of weights and their derivatives.
    pub max: *mut f32,
    pub sum: *mut f32,
    pub delta: *mut f32,
    end: *mut f32,
    pub key_pitch: usize,
    pub pitch: usize,
}

impl Space {
    /// Assigns parts of the memory that begins at `base` to the buffers.
    pub fn at(call: &Attention, base: *mut f32) -> Self {
        // With an odd number of cache lines per row, the rows spread over all sets of the cache.
        let (key_pitch, pitch) = (call.query_pitch() | LANES, call.value_pitch() | LANES);
        let mut end = base;
        let mut take = |floats: usize| {
            let start = end;
            end = end.wrapping_add(floats);
            start
        };
        let strip = call.keys.next_multiple_of(KEYS) * ROWS;
        // Leave extra space, because the products may read a few rows past the last row.
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
