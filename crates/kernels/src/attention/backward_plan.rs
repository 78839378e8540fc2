//! The arguments of the backward pass, and how it is split into jobs.

use super::block::ROWS;
use super::product::ADD_ROWS;
use super::{Attention, View};
use crate::element::Float;
use crate::simd::{F32x16, LANES};

/// The fewest jobs of a call, if its heads have enough rows and the sums have enough memory.
const JOBS: usize = 32;
/// The blocks of rows that a part needs, so that its work outweighs the time to add its sums.
const BLOCKS: usize = 8;
/// The most floats of the sums of all jobs, unless one part for each head already needs more.
const SUMS: usize = 24 << 20;

/// The arguments of [`attention_grad`](crate::attention_grad).
#[derive(Clone, Copy)]
pub struct Backward {
    /// The call whose result is differentiated; its keys and values are plain.
    pub forward: Attention,
    /// The gradient of the result, [batch, heads, queries, value_dim].
    pub cotangent: View,
    /// The derivatives in the queries, keys and values, [batch, position, head, feature]. `dk` and
    /// `dv` are null if they are not wanted.
    pub dq: *mut u8,
    pub dk: *mut u8,
    pub dv: *mut u8,
    /// The derivatives in an additive mask, one for every score, [batch, position, head, key]; null
    /// if they are not wanted.
    pub dmask: *mut u8,
    /// The derivatives in the sinks, one element for each head; null if there are no sinks.
    pub dsinks: *mut u8,
}

// SAFETY: the jobs write disjoint places, as the entry's contract lets them.
unsafe impl Sync for Backward {}

/// How a call is split into jobs, and the layout of a job's sums: first for the keys, then for the
/// values, then for the sinks of a key-value head.
#[derive(Clone, Copy)]
pub struct Plan {
    /// The blocks of the rows of a key-value head. The parts of the head take the blocks in turn.
    pub blocks: usize,
    pub parts: usize,
    /// The floats of a key, and of a value.
    pub key_pitch: usize,
    pub pitch: usize,
    /// The offsets at which the sums of the values begin, the sums of the sinks begin, and the
    /// job's sums end.
    pub values: usize,
    pub sinks: usize,
    pub floats: usize,
}

impl Plan {
    pub fn of(backward: &Backward) -> Self {
        let call = &backward.forward;
        let heads = call.batch * call.kv_heads;
        let blocks = call.rows().div_ceil(ROWS);
        let (key_pitch, pitch) = (call.query_pitch(), call.value_pitch());
        // The products also add zeros to a few keys after the last one.
        let keys = if backward.dk.is_null() { 0 } else { call.keys + ADD_ROWS };
        let (values, sinks) = (keys * key_pitch, keys * (key_pitch + pitch));
        let floats = (sinks + call.group()).next_multiple_of(LANES);
        let room = (SUMS / (heads * floats)).max(1);
        let parts = JOBS.div_ceil(heads).min(blocks.div_ceil(BLOCKS)).min(room);
        Self { blocks, parts, key_pitch, pitch, values, sinks, floats }
    }
}

/// Stores the first `count` lanes.
///
/// # Safety
/// `to` has room for `count` elements.
#[inline(always)]
pub unsafe fn put<V: F32x16, T: Float>(lanes: V, to: *mut T, count: usize) {
    // SAFETY: the caller's contract.
    unsafe { if count == LANES { T::store(lanes, to) } else { T::store_first(lanes, to, count) } }
}
