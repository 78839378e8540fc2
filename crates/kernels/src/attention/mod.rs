//! Scaled dot-product attention, with the softmax in f32, over plain or group-quantized keys and
//! values of any strides.
//!
//! A row is one query of one head. The rows of a key-value head are processed together, ordered by
//! position and then by head, so that the keys and values of the head are read once for all rows.
//! `decode` handles a few queries and splits the keys among the threads. `prefill` handles prompts
//! and splits the rows. In both, a thread keeps the scores of only one tile of keys at a time.
//!
//! The order in which a row adds up its keys depends only on the positions of the keys, since tiles
//! and chunks begin at multiples of their length. If a row has at least one visible key, its masked
//! keys do not change any bit of its result. Either the weight of a masked key is exactly 0, or the
//! sum that contains the weight is multiplied by exactly 0.

mod backward;
mod backward_mask;
mod backward_plan;
mod backward_rows;
mod backward_space;
mod block;
mod c_call;
mod call;
mod coded;
mod combine;
mod decode;
mod pairs;
mod plain;
mod prefill;
mod product;
mod scores;
mod source;
mod tile;

use super::element::{Element, Float, with_element};
use super::{Machine, Shared};
pub use backward::{Backward, attention_grad, attention_grad_on};
pub use c_call::{AttentionCall, AttentionGradCall};
pub use call::{Attention, Mask, Source, View};
use call::{DECODE_ROWS, MASKED, MAX_DIM, TILE, with_scratch};

/// Writes softmax(scale * q·kᵀ, capped and masked) · v to `out`, row-contiguous
/// [batch, queries, heads, value_dim], so that the heads of a position lie side by side.
///
/// # Safety
/// Every view covers the extents of the call with aligned elements of type `element` (u32 words if
/// packed, bytes if the mask is boolean). `out` overlaps no view.
pub unsafe fn attention(element: Element, call: &Attention, out: *mut u8) {
    let machine = Machine::current();
    // SAFETY: the caller's contract.
    with_element!(element, T => unsafe { attention_on::<T>(machine, call, out.cast()) })
}

pub unsafe fn attention_on<T: Float>(machine: Machine, call: &Attention, out: *mut T) {
    let out = Shared(out);
    // SAFETY: the caller's contract.
    unsafe {
        if call.order.is_of_tokens(call.queries) {
            decode::run(machine, call, out);
        } else {
            prefill::run(machine, call, out);
        }
    }
}
