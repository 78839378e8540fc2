//! Address space for one dispatch. Every binding gets a slot of 32 GiB with its data in the middle,
//! so that a wrong index stays in the slot and identifies the buffer. Bindings of the same memory
//! are mapped twice, with separate bounds and counters and shared contents.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{Condvar, Mutex, PoisonError};

pub(super) const SLOT: usize = 1 << 35;
pub(super) const SLOTS: usize = 128;
pub(super) const PAGE: usize = 1 << 16; // no page of any host is larger

/// The most arenas at a time: an x86-64 process has addresses for 31 of them.
const MOST: usize = 16;
static ARENAS: Mutex<usize> = Mutex::new(0);
static ONE_LESS: Condvar = Condvar::new();

/// A permit for an arena. A thread waits for it until another dispatch ends; no thread that holds a
/// permit waits for a second one.
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
        // SAFETY: reserves addresses only; nothing is overlaid.
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
            // SAFETY: just mapped, and unused.
            unsafe { libc::munmap(base, SLOT * SLOTS) };
            return Err(error);
        }
        // SAFETY: the descriptor is new and owned by nothing else.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        Ok(Arena { base: base as usize, file, used: 0, _permit: permit })
    }

    /// The slot of an address of the arena, and the offset in it.
    pub(super) fn slot(&self, address: usize) -> Option<(usize, usize)> {
        let offset = address.wrapping_sub(self.base);
        (offset < SLOT * SLOTS).then_some((offset / SLOT, offset % SLOT))
    }

    /// Reserves `bytes` bytes of memory to map into slots; returns their offset in the file.
    pub(super) fn allocate(&mut self, bytes: usize) -> io::Result<usize> {
        let offset = self.used;
        self.used += bytes.max(1).next_multiple_of(PAGE);
        // SAFETY: a plain system call on our own file.
        let result = unsafe { libc::ftruncate(self.file.as_raw_fd(), self.used as libc::off_t) };
        if result == 0 { Ok(offset) } else { Err(io::Error::last_os_error()) }
    }

    /// Maps `bytes` bytes of the file into the middle of a slot and returns their address.
    pub(super) fn map(&self, slot: usize, offset: usize, bytes: usize) -> io::Result<usize> {
        debug_assert!(slot < SLOTS && bytes < SLOT / 2);
        let address = self.base + slot * SLOT + SLOT / 2;
        // SAFETY: the mapping overlays a part of the arena's reservation.
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
        // SAFETY: our own reservation; kernels that pointed into it are gone.
        unsafe { libc::munmap(self.base as *mut libc::c_void, SLOT * SLOTS) };
    }
}
