//! Reserves address space for one dispatch. Every binding gets a slot of 32 GiB of addresses, and
//! its data begin in the middle of the slot. An address less than half a slot before or after the
//! first byte is in the slot, so the slot identifies the buffer even if an index is wrong. If two
//! bindings share memory, the memory is mapped twice. Then the bindings share the contents, but
//! have separate bounds and counters.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{Condvar, Mutex, PoisonError};

pub(super) const SLOT: usize = 1 << 35;
pub(super) const SLOTS: usize = 128;
pub(super) const PAGE: usize = 1 << 16; // at least the page size of every host

/// The maximum number of arenas that exist at a time. The address space of an x86-64 process has
/// room for 31 arenas.
const MOST: usize = 16;
static ARENAS: Mutex<usize> = Mutex::new(0);
static ONE_LESS: Condvar = Condvar::new();

/// A permit to create an arena. A thread may have to wait for a permit until another dispatch ends.
/// A thread that has a permit never waits for a second permit, so there is no deadlock.
struct Permit;

impl Permit {
    fn wait() -> Self {
        let count = ARENAS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut count = ONE_LESS
            .wait_while(count, |count| *count >= MOST)
            .unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        Permit
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *ARENAS.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ONE_LESS.notify_one();
    }
}

pub(super) struct Arena {
    base: usize,
    file: OwnedFd,
    used: usize,
    _permit: Permit,
}

impl Arena {
    pub(super) fn new() -> io::Result<Self> {
        let permit = Permit::wait();
        // SAFETY: the call reserves new addresses and does not replace a mapping.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                SLOT * SLOTS,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call only reads the name, which is a C string literal.
        let file = unsafe { libc::memfd_create(c"metal-sim".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            let error = io::Error::last_os_error();
            // SAFETY: the addresses were just reserved, and nothing uses them.
            unsafe { libc::munmap(base, SLOT * SLOTS) };
            return Err(error);
        }
        // SAFETY: the descriptor is new, and only this value owns it.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        Ok(Arena { base: base as usize, file, used: 0, _permit: permit })
    }

    /// Returns the slot that contains an address, and the offset in the slot; `None` if the address
    /// is not in the arena.
    pub(super) fn slot(&self, address: usize) -> Option<(usize, usize)> {
        let offset = address.wrapping_sub(self.base);
        (offset < SLOT * SLOTS).then_some((offset / SLOT, offset % SLOT))
    }

    /// Reserves `bytes` bytes of the file, which `map` can map into slots. Returns the offset of
    /// the bytes in the file.
    pub(super) fn allocate(&mut self, bytes: usize) -> io::Result<usize> {
        let offset = self.used;
        self.used += bytes.max(1).next_multiple_of(PAGE);
        // SAFETY: the call only changes the size of a file that this arena owns.
        let result = unsafe { libc::ftruncate(self.file.as_raw_fd(), self.used as libc::off_t) };
        if result == 0 { Ok(offset) } else { Err(io::Error::last_os_error()) }
    }

    /// Maps `bytes` bytes of the file into the middle of a slot. Returns the address of the first
    /// byte.
    pub(super) fn map(&self, slot: usize, offset: usize, bytes: usize) -> io::Result<usize> {
        debug_assert!(slot < SLOTS && bytes < SLOT / 2);
        let address = self.base + slot * SLOT + SLOT / 2;
        // SAFETY: the new mapping replaces only addresses that this arena has reserved.
        let mapped = unsafe {
            libc::mmap(
                address as *mut libc::c_void,
                bytes.max(1).next_multiple_of(PAGE),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                self.file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(address)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: this arena reserved the addresses, and no running kernel has pointers to them.
        unsafe { libc::munmap(self.base as *mut libc::c_void, SLOT * SLOTS) };
    }
}
