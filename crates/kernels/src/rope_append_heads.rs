//! Splits the combined projection of a step into heads of queries, keys and values, and rotates
//! queries and keys. The backward pass computes the derivatives of the projection.

use super::Machine;
use super::element::{Element, Float, with_element};
use super::rope::Frequencies;
use super::rope_append::{AppendShape, Place, move_on};

/// Splits `qkv` into queries, keys and values, `[batch, heads, time, head_dim]` each, and rotates
/// queries and keys. In the backward pass, the kernel reads the derivatives of the three parts and
/// writes the derivatives of `qkv`. It ignores the shape's capacity.
///
/// # Safety
/// `parts` and `qkv` hold the shape's elements, aligned for the element type, and do not overlap.
/// The forward pass writes only `parts`, the backward pass only `qkv`. `offsets` holds 1 or `batch`
/// numbers, and explicit frequencies are `dims / 2` numbers.
pub unsafe fn rope_heads(
    element: Element,
    parts: [*mut u8; 3],
    qkv: *mut u8,
    shape: &AppendShape,
    frequencies: Frequencies,
    offsets: &[i32],
) {
    let machine = Machine::current();
    // SAFETY: the caller upholds the contract; this machine supports `machine.level`.
    with_element!(element, T => unsafe {
        let parts = parts.map(<*mut u8>::cast::<T>);
        heads_on(machine, parts, qkv.cast(), shape, frequencies, offsets)
    })
}

/// # Safety
/// The contract of [`rope_heads`] applies.
pub unsafe fn heads_on<T: Float>(
    machine: Machine,
    parts: [*mut T; 3],
    qkv: *mut T,
    shape: &AppendShape,
    frequencies: Frequencies,
    offsets: &[i32],
) {
    // SAFETY: the caller upholds the contract; `Place::Heads` does not use the slot.
    unsafe { move_on(machine, Place::Heads(parts), qkv, shape, frequencies, offsets, &[0]) }
}
