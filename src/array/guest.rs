//! Arrays of a program that uses MLX by itself, and holds this library.

use std::pin::Pin;

use super::Array;
use crate::ffi::bridge as ffi;

/// Leaves MLX's main thread and the streams of threads to the program. Comes before the first op.
pub fn begin() {
    ffi::be_guest();
}

/// The array that the program holds as an `mlx::core::array` at `address`. It is shared.
///
/// # Safety
///
/// An `mlx::core::array` of the loaded libmlx lies there, and no thread assigns to it meanwhile.
pub unsafe fn array_at(address: *const ()) -> Array {
    // SAFETY: the caller promises that the type is right, and that the array does not change.
    Array::from_ref(unsafe { &*address.cast::<ffi::MlxArray>() })
}

/// The address and the number of the lengths of the array at `address`, which are not read.
///
/// # Safety
///
/// The word there is the address of memory that is as large as MLX's description of an array.
pub unsafe fn shape_at(address: *const ()) -> [usize; 2] {
    // SAFETY: of the description, only its own words are read, which the caller promises.
    ffi::shape_words(unsafe { &*address.cast::<ffi::MlxArray>() })
}

/// Makes the `mlx::core::array` at `address` the same as `array`.
///
/// # Safety
///
/// An `mlx::core::array` of the loaded libmlx lies there, and no thread uses it meanwhile.
pub unsafe fn assign(address: *mut (), array: &Array) {
    // SAFETY: the caller promises that the type is right, and that nobody else uses the place. The
    // assignment does not move it.
    let place = unsafe { Pin::new_unchecked(&mut *address.cast::<ffi::MlxArray>()) };
    ffi::assign(place, array.raw());
}
