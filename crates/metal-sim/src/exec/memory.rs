//! The memory of a dispatch: the bindings, the checks of each access, and the history of each byte.

use std::hash::Hasher;
use std::io;

use super::arena::{Arena, SLOTS};
use super::order::Order;
use super::shadow::{Cell, Earlier, READ, Stamp, WRITE};
use super::watch::{Byte, Watch};
use crate::buffer::Access;
use crate::report::Traffic;

/// The first slot for threadgroup memory. The slots before it are for buffers.
pub(super) const THREADGROUP_SLOTS: usize = 32;

/// The byte that fills uninitialized memory. Repeated, it is a negative number in every signed
/// type, and one of large magnitude in every floating-point type.
pub(super) const JUNK: u8 = 0xfb;
/// Other bytes for uninitialized memory. Repeated, they are a large positive number, zero, and NaN
/// or -1. A sum, a product, a minimum or a maximum can ignore some of these values, but not all
/// three.
pub(super) const OTHER_JUNK: [u8; 3] = [0x7b, 0, 0xff];

/// Memory that one or more bindings view, with the history of every byte.
pub(super) struct Storage {
    offset: usize,
    bytes: usize,
    cells: Vec<Cell>,
    /// For each byte, the number of the last load instruction that read it.
    fetches: Vec<u64>,
    /// For each byte, whether it is initialized.
    given: Vec<bool>,
}

/// A binding's view of a storage.
pub(super) struct Region {
    pub(super) name: String,
    pub(super) low: usize,
    pub(super) high: usize,
    pub(super) access: Access,
    pub(super) threadgroup: bool,
    pub(super) align: usize,
    pub(super) traffic: Traffic,
    storage: usize,
    origin: usize,
    seen: Vec<u8>,
}

/// The thread, the time, the instruction and the place of an access, for the history.
#[derive(Clone, Copy)]
pub(super) struct When {
    /// The thread of the access, and its time, which is a number of barriers. The first stamp
    /// counts the barriers of device memory, and the second the barriers of threadgroup memory.
    pub(super) stamps: [Stamp; 2],
    /// The number of the accessing instruction, from `Loads::next`. Lanes of a SIMD group that
    /// execute an instruction together have the same number, if they took the same branches.
    pub(super) instruction: u64,
    /// The return address of the access.
    pub(super) site: usize,
}

/// A fault of an access.
pub(super) enum Trouble {
    OutOfBounds,
    ReadOnly,
    Misaligned(usize),
    Uninitialized,
    /// A race, with the earlier access, the byte, and the return address of the earlier access if
    /// it is known.
    Race(Earlier, Byte, Option<usize>),
    /// A race of two stores that may store the same value. It has the same fields as `Race`.
    Overwrites(Earlier, Byte, Option<usize>),
}

pub(super) struct Memory {
    pub(super) arena: Arena,
    pub(super) regions: Vec<Option<Region>>,
    /// If the current store races with an earlier store, the addresses of the bytes, and their
    /// values before the current store.
    pub(super) overwritten: Vec<(usize, u8)>,
    pub(super) order: Order,
    storages: Vec<Storage>,
    watch: Watch,
    junk: u8,
}

pub(super) const ALIGNED: u32 = 4;

impl Memory {
    pub(super) fn new(watch: Watch, junk: u8) -> io::Result<Self> {
        let regions = (0..SLOTS).map(|_| None).collect();
        let (arena, overwritten, storages) = (Arena::new()?, Vec::new(), Vec::new());
        let order = Order::default();
        Ok(Memory { arena, regions, overwritten, order, storages, watch, junk })
    }

    pub(super) fn storage(&mut self, bytes: usize) -> io::Result<usize> {
        let offset = self.arena.allocate(bytes)?;
        self.storages.push(Storage {
            offset,
            bytes,
            cells: vec![Cell::default(); bytes],
            fetches: vec![0; bytes],
            given: vec![false; bytes],
        });
        Ok(self.storages.len() - 1)
    }

    /// Marks bytes of a storage as initialized.
    pub(super) fn give(&mut self, storage: usize, range: std::ops::Range<usize>) {
        self.storages[storage].given[range].fill(true);
    }

    /// Binds bytes of a storage to a slot. Returns the address of the first byte.
    pub(super) fn bind(
        &mut self,
        slot: usize,
        storage: usize,
        range: std::ops::Range<usize>,
        name: String,
        access: Access,
        align: usize,
    ) -> io::Result<usize> {
        let Storage { offset, bytes, .. } = self.storages[storage];
        let origin = self.arena.map(slot, offset, bytes)?;
        let threadgroup = slot >= THREADGROUP_SLOTS;
        self.regions[slot] = Some(Region {
            name,
            low: origin + range.start,
            high: origin + range.end,
            access,
            threadgroup,
            align,
            traffic: Traffic::default(),
            storage,
            origin,
            seen: if threadgroup { Vec::new() } else { vec![0; range.len()] },
        });
        Ok(origin + range.start)
    }

    /// Fills a slot's memory with junk, so that a threadgroup cannot read the contents of the
    /// previous threadgroup.
    pub(super) fn spoil(&mut self, slot: usize) {
        if let Some(region) = &self.regions[slot] {
            // SAFETY: the region is mapped, and no kernel runs.
            unsafe {
                std::ptr::write_bytes(region.low as *mut u8, self.junk, region.high - region.low);
            }
        }
    }

    /// Fills uninitialized memory with junk.
    pub(super) fn spoil_at(&mut self, address: usize, bytes: usize) {
        // SAFETY: callers pass only mapped memory of a binding, and no kernel runs.
        unsafe { std::ptr::write_bytes(address as *mut u8, self.junk, bytes) };
    }

    /// Checks and counts an access to `slot`, and calls `report` for its faults. If several bytes
    /// race or are uninitialized, only one such fault is reported. Returns whether the access may
    /// happen.
    #[inline(always)] // this function takes 30 to 40 % of a dispatch
    pub(super) fn access(
        &mut self,
        slot: usize,
        at: usize,
        bytes: usize,
        kind: u32,
        when: When,
        mut report: impl FnMut(&Region, Trouble),
    ) -> bool {
        let Some(region) = &mut self.regions[slot] else { return false };
        if at < region.low || bytes > region.high.wrapping_sub(at) || at > region.high {
            report(region, Trouble::OutOfBounds);
            return false;
        }
        // The compiler does not know the alignment of packed vectors, so the access only has to be
        // aligned as an element.
        let natural = if kind & ALIGNED != 0 { bytes.min(16) } else { region.align };
        if natural.is_power_of_two() && at & (natural - 1) != 0 {
            report(region, Trouble::Misaligned(natural));
        }
        if kind & WRITE != 0 && region.access == Access::Read {
            report(region, Trouble::ReadOnly);
            return false;
        }
        if kind & READ != 0 {
            region.traffic.loads += 1;
            region.traffic.read_bytes += bytes as u64;
            let first = at - region.origin;
            let fetches = &mut self.storages[region.storage].fetches[first..first + bytes];
            for last in fetches {
                region.traffic.fetched_bytes += u64::from(*last != when.instruction);
                *last = when.instruction;
            }
        }
        if kind & WRITE != 0 {
            region.traffic.stores += 1;
            region.traffic.written_bytes += bytes as u64;
        }
        let now = when.stamps[usize::from(region.threadgroup)];
        let first = at - region.origin;
        let storage = &mut self.storages[region.storage];
        let (mut trouble, mut overwrites) = (None, None);
        let ordered = self.order.is_used && !region.threadgroup;
        if !self.overwritten.is_empty() {
            self.overwritten.clear();
        }
        let given = &mut storage.given[first..first + bytes];
        let cells = storage.cells[first..first + bytes].iter_mut();
        for ((cell, given), byte) in cells.zip(given).zip(first..) {
            if kind & READ != 0 && !*given {
                trouble = trouble.or(Some(Trouble::Uninitialized));
            }
            let [race, overwrite] = match ordered {
                true => self.order.access(cell, (region.storage, byte), now, kind),
                false => cell.access(now, kind, |_| false),
            };
            if let Some(before) = overwrite {
                keep(&mut self.overwritten, region.origin + byte);
                overwrites = Some((before, byte));
            }
            if let Some(before) = race {
                let byte = (region.storage, byte);
                trouble = Some(Trouble::Race(before, byte, self.watch.find(byte, before)));
            }
            *given |= kind & WRITE != 0;
        }
        if !self.watch.is_empty() {
            for byte in first..first + bytes {
                self.watch.keep((region.storage, byte), now, kind & WRITE != 0, when.site);
            }
        }
        if !region.threadgroup {
            let low = region.low - region.origin;
            for seen in &mut region.seen[first - low..first - low + bytes] {
                *seen |= (kind & (READ | WRITE)) as u8;
            }
        }
        if let (None, Some((before, byte))) = (&trouble, overwrites) {
            let byte = (region.storage, byte);
            trouble = Some(Trouble::Overwrites(before, byte, self.watch.find(byte, before)));
        }
        if let Some(trouble) = trouble {
            report(region, trouble);
        }
        true
    }

    /// Hashes the bytes that the dispatch has written in buffers.
    pub(super) fn hash_stored(&self, hasher: &mut impl Hasher) {
        for region in self.regions[..THREADGROUP_SLOTS].iter().flatten() {
            // SAFETY: the region is mapped, and no kernel runs.
            let contents = unsafe {
                std::slice::from_raw_parts(region.low as *const u8, region.high - region.low)
            };
            let stored = |(at, _): &(usize, &u8)| u32::from(region.seen[*at]) & WRITE != 0;
            contents.iter().enumerate().filter(stored).for_each(|(_, byte)| hasher.write_u8(*byte));
        }
    }

    /// Whether the last store left the bytes in [`Self::overwritten`] unchanged.
    pub(super) fn is_unchanged(&self) -> bool {
        // SAFETY: the bytes are in regions, which stay mapped, and no kernel runs at this time.
        self.overwritten.iter().all(|&(at, before)| unsafe { *(at as *const u8) } == before)
    }

    /// Clears the history of a slot's memory before the next threadgroup runs.
    pub(super) fn forget(&mut self, slot: usize) {
        if let Some(region) = &self.regions[slot] {
            let storage = &mut self.storages[region.storage];
            storage.cells.fill(Cell::default());
            storage.given.fill(false);
        }
    }
}

/// Saves the value of a byte that is about to be overwritten.
#[cold]
fn keep(overwritten: &mut Vec<(usize, u8)>, at: usize) {
    // SAFETY: the byte is in a mapped region.
    overwritten.push((at, unsafe { *(at as *const u8) }));
}

impl Region {
    /// Returns the memory traffic, including the numbers of distinct bytes.
    pub(super) fn total(&self) -> Traffic {
        let count = |bit: u32| {
            let touched = self.seen.iter().filter(|seen| u32::from(**seen) & bit != 0);
            touched.count() as u64
        };
        Traffic { distinct_read: count(READ), distinct_written: count(WRITE), ..self.traffic }
    }

    /// Returns the offset of the first byte that was not written, and the number of bytes that were
    /// not written.
    pub(super) fn unwritten(&self) -> Option<(usize, usize)> {
        let untouched = |seen: &&u8| u32::from(**seen) & WRITE == 0;
        let first = self.seen.iter().position(|seen| untouched(&seen))?;
        Some((first, self.seen.iter().filter(untouched).count()))
    }
}
