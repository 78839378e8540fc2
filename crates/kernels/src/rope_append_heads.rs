//! Divides a step into heads of queries, keys and values, and rotates queries and keys. Backward,
//! it computes the derivatives in the step.

use super::Machine;
use super::element::{Element, Float, with_element};
use super::rope::Frequencies;
use super::rope_append::{AppendShape, Place, move_on};

/// Divides `qkv` into queries, keys and values, `[batch, heads, time, head_dim]` each, and rotates
/// queries and keys. Backward, `qkv` receives the derivatives in the step, computed from the
/// derivatives in the three parts. The shape's capacity is ignored.
///
/// # Safety
/// `parts` and `qkv` hold the shape's elements, aligned to the element, and do not overlap. Forward
/// writes only `parts`, backward only `qkv`. `offsets` hold 1 or `batch` numbers, explicit
/// frequencies `dims / 2`.
pub unsafe fn rope_heads(
    element: Element,
    parts: [*mut u8; 3],
    qkv: *mut u8,
    shape: &AppendShape,
    frequencies: Frequencies,
    offsets: &[i32],
) {
    let machine = Machine::current();
    // SAFETY: as the caller promises; `machine` is this machine.
    with_element!(element, T => unsafe {
        let parts = parts.map(<*mut u8>::cast::<T>);
        heads_on(machine, parts, qkv.cast(), shape, frequencies, offsets)
    })
}

/// # Safety
/// The contract of [`rope_heads`].
pub unsafe fn heads_on<T: Float>(
    machine: Machine,
    parts: [*mut T; 3],
    qkv: *mut T,
    shape: &AppendShape,
    frequencies: Frequencies,
    offsets: &[i32],
) {
    // SAFETY: the caller's contract; nothing reads the slot.
    unsafe { move_on(machine, Place::Heads(parts), qkv, shape, frequencies, offsets, &[0]) }
}
