//! Scaled dot-product attention, with the softmax in f32, over plain or group-quantized keys and
//! values of any strides.
//!
//! A row is one query of one head. The rows of a key-value head are processed together, ordered by
//! position and then by head, so that its keys and values are read once for all rows. `decode`
//! takes tokens and splits the keys; `prefill` takes prompts and splits the rows. Each holds the
//! scores of only one tile of keys at a time.
//!
//! A row adds up its keys in an order that depends only on their positions, since tiles and chunks
//! begin at multiples of their length. Once a row has seen a key, the keys that it does not see
//! change none of its bits: their weights, and the factors of their sums, are exactly 0.

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
