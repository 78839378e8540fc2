//! Counts the memory that a case takes: what Rust allocates, what MLX's arrays hold, and on Linux
//! what is resident.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_primitives::memory;

/// The system's allocator, which counts and which refuses what would fill the machine.
pub struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Bytes beyond which an allocation fails, and so ends the process: far above what any case may take.
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

// SAFETY: memory comes from the system's allocator as it is asked for, or null is returned, which
// says that there is none.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match take(layout.size()) {
            // SAFETY: the caller promises what the system's allocator asks for.
            true => unsafe { System.alloc(layout) },
            false => ptr::null_mut(),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match take(layout.size()) {
            // SAFETY: as for `alloc`.
            true => unsafe { System.alloc_zeroed(layout) },
            false => ptr::null_mut(),
        }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !take(size) {
            return ptr::null_mut();
        }
        // SAFETY: the caller promises what the system's allocator asks for, which made `old`.
        let new = unsafe { System.realloc(old, layout, size) };
        give(if new.is_null() { size } else { layout.size() });
        new
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: the caller promises that `alloc` above returned it, so the system's made it.
        unsafe { System.dealloc(old, layout) }
    }
}

/// What was held when a case began.
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

    /// The most bytes that were taken since, by whichever count is the greatest.
    pub fn taken(&self) -> usize {
        let rust = PEAK.load(Ordering::Relaxed).saturating_sub(self.rust);
        let arrays = memory::peak_memory().saturating_sub(self.arrays);
        let resident = most_resident().saturating_sub(self.resident);
        rust.max(arrays).max(resident)
    }
}

/// The most bytes that were resident since the process began; 0 where the system does not say.
fn most_resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    let kib = line.split_whitespace().next().and_then(|kib| kib.parse::<usize>().ok());
    kib.unwrap_or(0) << 10
}
