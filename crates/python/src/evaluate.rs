//! Evaluates arrays with the crate `mlx-primitives`. On a CPU, that crate hands several kernels at
//! a time to the stream's thread, and the thread that waits helps to run the kernels.
//!
//! Python calls `mlx_primitives_collect` while it holds its lock, and `mlx_primitives_evaluate`
//! without the lock.

use std::ffi::c_char;

use mlx_primitives::{Array, async_eval, eval};

use crate::call::finish;
use crate::objects::{Object, layout};
use crate::refused::Refused;

/// The arrays that `mlx_primitives_collect` hands to `mlx_primitives_evaluate`.
type Collected = Vec<Array>;

/// Makes a list of the arrays in `count` objects, and writes the address of the list to `list`.
///
/// # Safety
///
/// `objects` has `count` Python objects, and an address can be written to `list`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx_primitives_collect(
    objects: *const Object,
    count: usize,
    list: *mut *mut Collected,
) -> *const c_char {
    finish(|| {
        let layout = layout()?;
        // SAFETY: the caller promises this number of objects, which live during the call.
        let arrays = (0..count).map(|i| unsafe { layout.array(*objects.add(i), "all arguments") });
        let arrays = Box::new(arrays.collect::<Result<Collected, _>>()?);
        // SAFETY: the caller's promise.
        unsafe { list.write(Box::into_raw(arrays)) };
        Ok(())
    })
}

/// Computes the arrays of a list, and frees the list. If `later`, only starts to compute them.
///
/// # Safety
///
/// `mlx_primitives_collect` made the list on this thread, and the caller does not use the list
/// again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx_primitives_evaluate(
    list: *mut Collected,
    later: bool,
) -> *const c_char {
    finish(|| {
        // SAFETY: the caller's promise.
        let arrays = unsafe { Box::from_raw(list) };
        let done = if later { async_eval(arrays.iter()) } else { eval(arrays.iter()) };
        done.map_err(|error| Refused::Runtime(error.to_string()))
    })
}
