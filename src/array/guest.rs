//! Exchanges arrays with a program that calls MLX directly and has loaded this library.

use std::pin::Pin;

use super::Array;
use crate::ffi::bridge as ffi;

/// Leaves MLX's main thread and the streams of threads to the program. Call it before the first op.
pub fn begin() {
    ffi::be_guest();
}

/// A new handle of the array that the program holds as an `mlx::core::array` at `address`.
///
/// # Safety
///
/// `address` points to an array of the loaded libmlx, which no thread assigns to during the call.
pub unsafe fn array_at(address: *const ()) -> Array {
    // SAFETY: the caller promises that the type is right, and that the array does not change.
    Array::from_ref(unsafe { &*address.cast::<ffi::MlxArray>() })
}

/// The address and the number of the array's dimensions, without a read of the dimensions.
///
/// # Safety
///
/// The word at `address` points to memory as large as MLX's description of an array.
pub unsafe fn shape_at(address: *const ()) -> [usize; 2] {
    // SAFETY: only words of the description are read; the caller promises that they are readable.
    ffi::shape_words(unsafe { &*address.cast::<ffi::MlxArray>() })
}

/// Makes the `mlx::core::array` at `address` the same as `array`.
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
