//! Ends the command with a message and status 1 if the system refuses memory to Rust's collections.
//! Without this allocator, a signal would end the command. MLX reports such a failure of its arrays
//! as an error.

use std::alloc::{GlobalAlloc, Layout, System};

#[global_allocator]
static ALLOCATOR: SystemOrExit = SystemOrExit;

/// The system's allocator, which never returns null.
struct SystemOrExit;

// SAFETY: each function either calls the same function of the system's allocator, whose contract
// the caller keeps, or does not return.
unsafe impl GlobalAlloc for SystemOrExit {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of the allocator.
        present(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of the allocator.
        present(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of the allocator.
        present(unsafe { System.realloc(memory, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of the allocator.
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
    // SAFETY: `write` reads bytes that live as long as the process, and `_exit` ends it. Neither
    // allocates.
    unsafe {
        libc::write(libc::STDERR_FILENO, SAID.as_ptr().cast(), SAID.len());
        libc::_exit(1)
    }
}
