//! Exchanges arrays with a program that calls MLX directly and has loaded this library.

use std::pin::Pin;

use super::Array;
use crate::ffi::bridge as ffi;

/// Tells the library that it runs inside a program that uses MLX directly. The library then does
/// not change MLX's main thread or the threads' streams. Call this before the first op.
pub fn begin() {
    ffi::be_guest();
}

/// Returns a new handle of the program's `mlx::core::array` at `address`.
///
/// # Safety
///
/// `address` points to an array of the loaded libmlx, which no thread assigns to during the call.
pub unsafe fn array_at(address: *const ()) -> Array {
    // SAFETY: the caller promises that the type is right, and that the array does not change.
    Array::from_ref(unsafe { &*address.cast::<ffi::MlxArray>() })
}

/// Returns the address of the array's list of dimensions, and its length. Does not read the list.
///
/// # Safety
///
/// The word at `address` points to memory as large as MLX's description of an array.
pub unsafe fn shape_at(address: *const ()) -> [usize; 2] {
    // SAFETY: the call reads only words of the description. The caller promises that they are
    // readable.
    ffi::shape_words(unsafe { &*address.cast::<ffi::MlxArray>() })
}

/// Assigns `array` to the program's `mlx::core::array` at `address`.
///
/// # Safety
///
/// `address` points to an array of the loaded libmlx, which no thread uses during the call.
pub unsafe fn assign(address: *mut (), array: &Array) {
    // SAFETY: the caller promises that the type is right, and that nobody else uses the array. The
    // assignment does not move the array.
    let place = unsafe { Pin::new_unchecked(&mut *address.cast::<ffi::MlxArray>()) };
    ffi::assign(place, array.raw());
}
