//! Counts the memory that a case takes: Rust's allocations, MLX's arrays, and on Linux the resident
//! memory of the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_primitives::memory;

/// The system's allocator, with a counter. A limit protects the machine.
pub struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The process ends if Rust code would hold more bytes than this at a time. A case may take far
/// less.
const MOST: usize = 1 << 30;

fn take(bytes: usize) -> bool {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
    if live > MOST {
        LIVE.fetch_sub(bytes, Ordering::Relaxed);
        return false;
    }
    PEAK.fetch_max(live, Ordering::Relaxed);
    true
}

fn give(bytes: usize) {
    LIVE.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: this allocator returns the memory of the system's allocator, or null if the limit is
// reached.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match take(layout.size()) {
            // SAFETY: the caller fulfills the requirements of `alloc`, which the system's allocator
            // shares.
            true => unsafe { System.alloc(layout) },
            false => ptr::null_mut(),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match take(layout.size()) {
            // SAFETY: the caller fulfills the requirements of `alloc_zeroed`, which the system's
            // allocator shares.
            true => unsafe { System.alloc_zeroed(layout) },
            false => ptr::null_mut(),
        }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !take(size) {
            return ptr::null_mut();
        }
        // SAFETY: the system's allocator made `old`, and the caller fulfills the requirements of
        // `realloc`.
        let new = unsafe { System.realloc(old, layout, size) };
        give(if new.is_null() { size } else { layout.size() });
        new
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: the caller promises that this allocator returned `old`, so it is memory of the
        // system's allocator.
        unsafe { System.dealloc(old, layout) }
    }
}

/// The memory in use when a case began.
pub struct Before {
    rust: usize,
    arrays: usize,
    resident: usize,
}

impl Before {
    pub fn now() -> Self {
        let rust = LIVE.load(Ordering::Relaxed);
        PEAK.store(rust, Ordering::Relaxed);
        memory::reset_peak_memory();
        Self { rust, arrays: memory::active_memory(), resident: most_resident() }
    }

    /// The most memory that was taken since the case began: the largest of the three counts.
    pub fn taken(&self) -> usize {
        let rust = PEAK.load(Ordering::Relaxed).saturating_sub(self.rust);
        let arrays = memory::peak_memory().saturating_sub(self.arrays);
        let resident = most_resident().saturating_sub(self.resident);
        rust.max(arrays).max(resident)
    }
}

/// The peak of resident bytes since the process began, or 0 if the system does not report it.
fn most_resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    let kib = line.split_whitespace().next().and_then(|kib| kib.parse::<usize>().ok());
    kib.unwrap_or(0) << 10
}
