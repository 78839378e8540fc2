//! Ends the command with a message and status 1 if the system refuses memory to Rust's collections.
//! Without this allocator, a signal would end the command. If MLX gets no memory for an array, it
//! reports an error instead.

use std::alloc::{GlobalAlloc, Layout, System};

#[global_allocator]
static ALLOCATOR: SystemOrExit = SystemOrExit;

/// The system's allocator, but it ends the process instead of returning null.
struct SystemOrExit;

// SAFETY: each function calls the function of the system's allocator with the same name, and the
// caller keeps the contract. If memory runs out, the function does not return.
unsafe impl GlobalAlloc for SystemOrExit {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        present(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        present(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        present(unsafe { System.realloc(memory, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn present(memory: *mut u8) -> *mut u8 {
    if memory.is_null() {
        exit();
    }
    memory
}

/// Ends the process without allocating memory.
#[cold]
fn exit() -> ! {
    const SAID: &[u8] = b"error: out of memory: free some, or use a smaller model or context\n";
    // SAFETY: `write` reads a constant, and `_exit` ends the process. Neither allocates memory.
    unsafe {
        libc::write(libc::STDERR_FILENO, SAID.as_ptr().cast(), SAID.len());
        libc::_exit(1)
    }
}
