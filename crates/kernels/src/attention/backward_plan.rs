//! The arguments of the backward pass, and how it is split into jobs.

use super::block::ROWS;
use super::product::ADD_ROWS;
use super::{Attention, View};
use crate::element::Float;
use crate::simd::{F32x16, LANES};

/// The fewest jobs of a call, if its heads have enough rows, and memory for their sums is enough.
const JOBS: usize = 32;
/// Blocks of rows of a part that are worth the time which its sums take.
const BLOCKS: usize = 8;
/// The most floats of the sums of all jobs, unless those of one part of each head are more.
const SUMS: usize = 24 << 20;

/// The arguments of [`attention_grad`](crate::attention_grad).
#[derive(Clone, Copy)]
pub struct Backward {
    /// The call whose result is differentiated; its keys and values are plain.
    pub forward: Attention,
    /// The derivative of a scalar in the result, [batch, heads, queries, value_dim].
    pub cotangent: View,
    /// The derivatives in the queries, keys and values, [batch, position, head, feature]. Those in
    /// keys and values are null if they are not wanted.
    pub dq: *mut u8,
    pub dk: *mut u8,
    pub dv: *mut u8,
    /// The derivatives in an additive mask of every score, [batch, position, head, key]; null if
    /// they are not wanted.
    pub dmask: *mut u8,
    /// The derivatives in the sinks, an element for each head; null if there are none.
    pub dsinks: *mut u8,
}

// SAFETY: the jobs write disjoint places, as the entry's contract lets them.
unsafe impl Sync for Backward {}

/// How a call is split into jobs, and the sums of a job: those of the keys, of the values, and of
/// the sinks of a key-value head.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Blocks of the rows of a key-value head, which its parts take in turn.
    pub blocks: usize,
    pub parts: usize,
    /// Floats of a key and of a value.
    pub key_pitch: usize,
    pub pitch: usize,
    /// Where the sums of the values and of the sinks begin, and where those of the job end.
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
        // The products add zeros to a few keys after the last.
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
/// `to` has room for them.
#[inline(always)]
pub unsafe fn put<V: F32x16, T: Float>(lanes: V, to: *mut T, count: usize) {
    // SAFETY: the caller's contract.
    unsafe { if count == LANES { T::store(lanes, to) } else { T::store_first(lanes, to, count) } }
}
