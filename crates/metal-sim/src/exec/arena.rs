//! Address space for one dispatch. Every binding gets a slot of 32 GiB with its data in the middle,
//! so that a wrong index stays in the slot and identifies the buffer. If two bindings share memory,
//! it is mapped twice: the contents are shared, and each binding has separate bounds and counters.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{Condvar, Mutex, PoisonError};

pub(super) const SLOT: usize = 1 << 35;
pub(super) const SLOTS: usize = 128;
pub(super) const PAGE: usize = 1 << 16; // no page of any host is larger

/// The most arenas that exist at a time. An x86-64 process has addresses for 31 arenas.
const MOST: usize = 16;
static ARENAS: Mutex<usize> = Mutex::new(0);
static ONE_LESS: Condvar = Condvar::new();

/// A permit to create an arena. A thread may have to wait until another dispatch ends. A thread
/// that holds a permit never waits for a second one, so there is no deadlock.
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
        // SAFETY: reserves new addresses, and replaces no mapping.
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
        // SAFETY: a plain system call with a literal name.
        let file = unsafe { libc::memfd_create(c"metal-sim".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            let error = io::Error::last_os_error();
            // SAFETY: the addresses were just mapped, and nothing uses them.
            unsafe { libc::munmap(base, SLOT * SLOTS) };
            return Err(error);
        }
        // SAFETY: the descriptor is new, and only this value owns it.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        Ok(Arena { base: base as usize, file, used: 0, _permit: permit })
    }

    /// The slot that contains an address of the arena, and the offset in the slot.
    pub(super) fn slot(&self, address: usize) -> Option<(usize, usize)> {
        let offset = address.wrapping_sub(self.base);
        (offset < SLOT * SLOTS).then_some((offset / SLOT, offset % SLOT))
    }

    /// Reserves `bytes` bytes of the file, which can be mapped into slots. Returns their offset in
    /// the file.
    pub(super) fn allocate(&mut self, bytes: usize) -> io::Result<usize> {
        let offset = self.used;
        self.used += bytes.max(1).next_multiple_of(PAGE);
        // SAFETY: a plain system call on a file that this arena owns.
        let result = unsafe { libc::ftruncate(self.file.as_raw_fd(), self.used as libc::off_t) };
        if result == 0 { Ok(offset) } else { Err(io::Error::last_os_error()) }
    }

    /// Maps `bytes` bytes of the file into the middle of a slot and returns their address.
    pub(super) fn map(&self, slot: usize, offset: usize, bytes: usize) -> io::Result<usize> {
        debug_assert!(slot < SLOTS && bytes < SLOT / 2);
        let address = self.base + slot * SLOT + SLOT / 2;
        // SAFETY: the mapping replaces a part of the arena's reservation.
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
        // SAFETY: this arena made the reservation, and no kernel runs that has pointers into it.
        unsafe { libc::munmap(self.base as *mut libc::c_void, SLOT * SLOTS) };
    }
}
