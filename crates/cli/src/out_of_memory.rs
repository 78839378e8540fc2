//! Ends the command with a message and status 1 when the system refuses memory to Rust's own
//! collections, which would end it with a signal. MLX's arrays report that as an error.

use std::alloc::{GlobalAlloc, Layout, System};

#[global_allocator]
static ALLOCATOR: SystemOrExit = SystemOrExit;

/// The system's allocator, which never returns null.
struct SystemOrExit;

// SAFETY: each function calls that of the system's allocator, whose contract the caller keeps, or
// does not return.
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

/// Ends the process without a further allocation.
#[cold]
fn exit() -> ! {
    const SAID: &[u8] = b"error: out of memory: free some, or use a smaller model or context\n";
    // SAFETY: the calls write bytes that live as long as the process, and end it. Neither
    // allocates.
    unsafe {
        libc::write(libc::STDERR_FILENO, SAID.as_ptr().cast(), SAID.len());
        libc::_exit(1)
    }
}
