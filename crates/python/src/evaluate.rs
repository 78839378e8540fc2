//! Evaluates arrays by the core. On a CPU, the core hands several kernels at a time to the stream's
//! thread, and the thread that waits helps to run the kernels.
//!
//! Python collects arrays while it holds its lock, and evaluates them without it.

use std::ffi::c_char;

use mlx_primitives::{Array, async_eval, eval};

use crate::call::finish;
use crate::objects::{Object, layout};
use crate::refused::Refused;

/// Arrays on the way from one call to the next.
type Collected = Vec<Array>;

/// Writes the address of a list of the arrays in `count` objects to `list`.
///
/// # Safety
///
/// The objects are Python's, and `list` is a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx_primitives_collect(
    objects: *const Object,
    count: usize,
    list: *mut *mut Collected,
) -> *const c_char {
    finish(|| {
        let layout = layout()?;
        // SAFETY: the caller promises this many objects, of which each lives during the call.
        let arrays = (0..count).map(|i| unsafe { layout.array(*objects.add(i), "all arguments") });
        let arrays = Box::new(arrays.collect::<Result<Collected, _>>()?);
        // SAFETY: the caller's promise.
        unsafe { list.write(Box::into_raw(arrays)) };
        Ok(())
    })
}

/// Computes the arrays of a list, or only starts to compute them if `later`, and frees the list.
///
/// # Safety
///
/// The list is one of `mlx_primitives_collect` on this thread, and is not used again.
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
