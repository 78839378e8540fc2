//! The arguments of the backward pass, and its division into jobs. A job processes one part of the
//! rows of a key/value head.

use super::block::ROWS;
use super::product::ADD_ROWS;
use super::{Attention, View};
use crate::element::Float;
use crate::simd::{F32x16, LANES};

/// A call is split into at least this number of jobs, if its heads have enough rows and the jobs'
/// sums fit in `SUMS`.
const JOBS: usize = 32;
/// A key/value head has at most one part for each `BLOCKS` blocks of rows, rounded up. With more
/// parts, adding their sums would take too large a share of the time.
const BLOCKS: usize = 8;
/// The largest number of floats in the sums of all jobs together. Only a call with one part per
/// head may need more.
const SUMS: usize = 24 << 20;

/// The arguments of [`attention_grad`](crate::attention_grad).
#[derive(Clone, Copy)]
pub struct Backward {
    /// The forward call to differentiate. Its keys and values must not be quantized.
    pub forward: Attention,
    /// The gradient with respect to the result, [batch, heads, queries, value_dim].
    pub cotangent: View,
    /// The derivatives with respect to queries, keys and values, [batch, position, head, feature].
    /// `dk` and `dv` are null if the caller does not need them.
    pub dq: *mut u8,
    pub dk: *mut u8,
    pub dv: *mut u8,
    /// The derivatives with respect to an additive mask, one for every score, [batch, position,
    /// head, key]. Null if the caller does not need them.
    pub dmask: *mut u8,
    /// The derivatives with respect to the sinks, one element for each head. Null if there are no
    /// sinks.
    pub dsinks: *mut u8,
}

// SAFETY: the jobs write to disjoint addresses, which the contract of `attention_grad` allows.
unsafe impl Sync for Backward {}

/// The division of a call into jobs, and the layout of a job's sums: first for the keys, then for
/// the values, and then for the sinks of a key/value head.
#[derive(Clone, Copy)]
pub struct Plan {
    /// The number of blocks of rows in a key/value head. Part `i` of the head processes the blocks
    /// `i`, `i + parts`, and so on.
    pub blocks: usize,
    pub parts: usize,
    /// The number of floats for a key, and for a value.
    pub key_pitch: usize,
    pub pitch: usize,
    /// The offsets in a job's sums: `values` where the sums of the values begin, `sinks` where the
    /// sums of the sinks begin, and `floats` where all sums end.
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
        // The products may also add zeros to the sums of a few keys after the last key.
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
/// `to` must have room for `count` elements.
#[inline(always)]
pub unsafe fn put<V: F32x16, T: Float>(lanes: V, to: *mut T, count: usize) {
    // SAFETY: the caller's contract.
    unsafe { if count == LANES { T::store(lanes, to) } else { T::store_first(lanes, to, count) } }
}
