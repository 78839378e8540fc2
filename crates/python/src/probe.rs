//! Whether arrays lie where the layout says, found out without following a pointer that may lead
//! nowhere.

use mlx_primitives::Dtype;
use mlx_primitives::support::guest;

use crate::objects::{Layout, Object};

/// The shape of the probe.
const SHAPE: [i32; 3] = [3, 5, 7];
/// The bytes of MLX's description of an array that reading its shape and type touches, at most.
const DESCRIPTION: usize = 256;

/// The layout of `mx.array` objects, or why it is not as expected.
///
/// # Safety
///
/// `probe` is a Python object of `size` bytes, whose header has `head` bytes.
pub unsafe fn examine(
    head: usize,
    size: usize,
    array_type: Object,
    none: Object,
    probe: Object,
) -> Result<Layout, String> {
    // SAFETY: the caller's promise.
    let layout = unsafe { Layout::of(head, size, array_type, none, probe) }?;
    let elsewhere = || "an mx.array does not hold its array where nanobind says".to_owned();
    // SAFETY: the caller's promise.
    let address = unsafe { layout.address(probe) }.ok_or_else(elsewhere)?;
    // SAFETY: `Layout::of` has seen that these bytes belong to the object.
    let description = unsafe { address.cast::<usize>().read() };
    let mut bytes = [0; DESCRIPTION];
    if !description.is_multiple_of(align_of::<usize>()) || !copied(description, &mut bytes) {
        return Err(elsewhere());
    }
    // SAFETY: the word at this address is that of readable memory, of the description's size.
    let [place, count] = unsafe { guest::shape_at(address) };
    let mut dims = [0; size_of::<[i32; 3]>()];
    if count != SHAPE.len() || !copied(place, &mut dims) || dims != bytes_of(SHAPE) {
        return Err(elsewhere());
    }
    // SAFETY: the shape of the probe is there, so this is its array.
    let dtype = unsafe { guest::array_at(address) }.dtype();
    if dtype != Dtype::Float16 {
        return Err(format!("an mx.array of float16 has the type {dtype} here"));
    }
    Ok(layout)
}

fn bytes_of(shape: [i32; 3]) -> [u8; 12] {
    let mut bytes = [0; 12];
    for (four, dim) in bytes.chunks_exact_mut(4).zip(shape) {
        four.copy_from_slice(&dim.to_ne_bytes());
    }
    bytes
}

/// Copies what lies at an address; false where a program may not read. The system reads it.
fn copied(address: usize, into: &mut [u8]) -> bool {
    let mut ends = [0; 2];
    // SAFETY: the array has room for both ends.
    if unsafe { libc::pipe(ends.as_mut_ptr()) } != 0 {
        return false;
    }
    let [read, write] = ends;
    // SAFETY: the system checks the first address, and the second has room for the bytes, of which
    // a pipe holds more. Both ends are closed once.
    unsafe {
        let sent = libc::write(write, std::ptr::with_exposed_provenance(address), into.len());
        let whole = sent == into.len() as isize
            && libc::read(read, into.as_mut_ptr().cast(), into.len()) == sent;
        libc::close(read);
        libc::close(write);
        whole
    }
}
