//! Checks whether arrays have the expected layout in memory, without following a pointer that may
//! be invalid.

use mlx_primitives::Dtype;
use mlx_primitives::support::guest;

use crate::objects::{Layout, Object};

/// The shape of the probe array. The library looks for these numbers in memory.
const SHAPE: [i32; 3] = [3, 5, 7];
/// The number of bytes of MLX's array description that must be readable. The fields for the shape
/// and the type lie within them.
const DESCRIPTION: usize = 256;

/// Finds the layout of `mx.array` objects, or returns an error that says what is unexpected.
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
    // SAFETY: `Layout::of` has checked that these bytes belong to the object.
    let description = unsafe { address.cast::<usize>().read() };
    let mut bytes = [0; DESCRIPTION];
    if !description.is_multiple_of(align_of::<usize>()) || !copied(description, &mut bytes) {
        return Err(elsewhere());
    }
    // SAFETY: the word at this address points to readable memory of the description's size.
    let [place, count] = unsafe { guest::shape_at(address) };
    let mut dims = [0; size_of::<[i32; 3]>()];
    if count != SHAPE.len() || !copied(place, &mut dims) || dims != bytes_of(SHAPE) {
        return Err(elsewhere());
    }
    // SAFETY: the description has the shape of the probe, so it describes the probe's array.
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

/// Copies the bytes at an address. Returns false if the process may not read them. The operating
/// system reads the bytes, so an invalid address does no harm.
fn copied(address: usize, into: &mut [u8]) -> bool {
    let mut ends = [0; 2];
    // SAFETY: the array has room for both ends of the pipe.
    if unsafe { libc::pipe(ends.as_mut_ptr()) } != 0 {
        return false;
    }
    let [read, write] = ends;
    // SAFETY: the system checks the address that `write` reads. The other buffer has room for the
    // bytes, and a pipe holds more than these. Each end is closed once.
    unsafe {
        let sent = libc::write(write, std::ptr::with_exposed_provenance(address), into.len());
        let whole = sent == into.len() as isize
            && libc::read(read, into.as_mut_ptr().cast(), into.len()) == sent;
        libc::close(read);
        libc::close(write);
        whole
    }
}
