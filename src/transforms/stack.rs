//! Checks that the stack is large enough for MLX's recursive walk of a closure's graph.

use std::cell::Cell;

use cxx::CxxVector;

use super::bridge::ffi;
use crate::error::{Error, Result};

/// An upper bound of the bytes of stack that a derivative or [`vmap`](super::vmap) needs for each
/// op of a chain. MLX's library for Linux needs about half of this.
pub const BYTES_PER_OP: usize = 320;

/// An upper bound of the bytes of stack that [`compile`](super::compile) needs for each op of a
/// chain.
pub const BYTES_PER_COMPILED_OP: usize = 480;

/// The bytes of stack to reserve for the transform itself and for the methods of primitives that it
/// calls.
const RESERVE: usize = 96 << 10;

/// Returns an error if MLX's recursion from `outputs` to `inputs` would overflow this thread's
/// stack. MLX starts the recursion at about the stack depth of this call, and takes `bytes` for
/// each op.
pub(super) fn check(
    bytes: usize,
    inputs: &CxxVector<ffi::MlxArray>,
    outputs: &CxxVector<ffi::MlxArray>,
) -> Result<()> {
    let Some(left) = left() else {
        return Ok(()); // a platform that is not supported
    };
    let ops = ffi::nesting(inputs, outputs)?;
    let most = left.saturating_sub(RESERVE) / bytes;
    if ops > most {
        return Err(Error::argument(
            "transform",
            format_args!(
                "a closure with at most {most} ops in a row, for which this thread has stack, got {ops}: run it on a \
                 thread with a larger stack, or in parts"
            ),
        ));
    }
    Ok(())
}

/// The assumed number of free bytes if the code does not run on the thread's own stack, for example
/// in a coroutine.
const ELSEWHERE: usize = 512 << 10;

thread_local! {
    /// The bounds of this thread's stack, cached by the first query.
    static STACK: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

/// The free bytes of this thread's stack, which lie below the caller's frame.
fn left() -> Option<usize> {
    let here = 0u8;
    let at = std::ptr::from_ref(std::hint::black_box(&here)).addr();
    let (lowest, end) = STACK.get().or_else(stack)?;
    STACK.set(Some((lowest, end)));
    Some(if (lowest..end).contains(&at) { at - lowest } else { ELSEWHERE })
}

/// Returns the lowest address of this thread's stack, and the first address above the stack.
#[cfg(target_os = "linux")]
fn stack() -> Option<(usize, usize)> {
    use std::mem::MaybeUninit;

    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut lowest, mut bytes, mut guard) = (std::ptr::null_mut(), 0, 0);
    // SAFETY: the first call fills the attributes, and the other calls read and free them. Each
    // call writes only to its arguments.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let found = libc::pthread_attr_getstack(attributes.as_ptr(), &mut lowest, &mut bytes);
        libc::pthread_attr_getguardsize(attributes.as_ptr(), &mut guard);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        // Some C libraries count the guard pages as part of the stack, so the guard is skipped.
        (found == 0).then(|| (lowest.addr() + guard, lowest.addr() + bytes))
    }
}

#[cfg(target_os = "macos")]
fn stack() -> Option<(usize, usize)> {
    // SAFETY: both functions only read properties of the calling thread.
    let (highest, bytes) = unsafe {
        let this = libc::pthread_self();
        (libc::pthread_get_stackaddr_np(this), libc::pthread_get_stacksize_np(this))
    };
    Some((highest.addr() - bytes, highest.addr()))
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn stack() -> Option<(usize, usize)> {
    None
}
