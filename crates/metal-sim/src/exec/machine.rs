//! The state of a running dispatch: its threads, its memory, and the faults and counts so far.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::arena::SLOTS;
use super::faults::Faults;
use super::memory::{Memory, THREADGROUP_SLOTS, Trouble, When};
use super::scheduler::{Barrier, Ready, SIMD_WIDTH, Simd, Thread};
use super::shadow::{Earlier, READ, Stamp, WRITE};
use super::trace::Trace;
use super::watch::Byte;
use crate::buffer::Access;
use crate::module::Module;
use crate::report::{FaultKind, Report, ThreadPlace};

/// The bytes of threadgroup memory that a threadgroup can use on every Apple GPU.
pub(super) const THREADGROUP_LIMIT: usize = 32 << 10;
/// The first slot for threadgroup variables. It follows the slots for threadgroup memory that the
/// dispatch binds.
const VARIABLE_SLOTS: usize = THREADGROUP_SLOTS + 32;

/// A `threadgroup` variable that the kernel has accessed.
struct Variable {
    key: usize,
    address: usize,
}

/// A store that races with an earlier store. The race is classified after the store, when the new
/// value is in memory.
pub(super) struct Overwrite {
    before: Earlier,
    byte: Byte,
    /// The return address of this store, and of the earlier store if it is known.
    sites: (usize, Option<usize>),
    slot: usize,
    offset: isize,
    place: Option<ThreadPlace>,
}

pub(crate) struct Machine {
    pub(super) memory: Memory,
    pub(super) faults: Faults,
    /// Accesses that look like a fault but do not change a result.
    pub(super) notes: Faults,
    pub(super) trace: Trace,
    pub(super) threads: Vec<Thread>,
    pub(super) simds: Vec<Simd>,
    pub(super) ready: Ready,
    pub(super) current: usize,
    pub(super) live: usize,
    pub(super) barrier: Barrier,
    /// The numbers of threadgroup barriers so far, for device memory and for threadgroup memory.
    pub(super) epochs: [u32; 2],
    pub(super) group: u32,
    pub(super) group_position: [u32; 3],
    pub(super) report: Report,
    /// Bytes with a race whose earlier access has no known place. A second run finds these places.
    pub(super) raced: Vec<Byte>,
    pub(super) stopped: bool,
    pub(super) module: Option<Arc<Module>>,
    /// For each pair of return addresses that was compared before, whether both have the same
    /// source lines.
    pub(super) same_places: HashMap<(usize, usize), bool>,
    image: std::ops::Range<usize>,
    variables: Vec<Variable>,
    bound_bytes: usize,
    pub(super) overwrite: Option<Overwrite>,
}

impl Machine {
    pub(super) fn new(
        ready: Ready,
        image: std::ops::Range<usize>,
        memory: Memory,
        trace: Trace,
    ) -> Self {
        Machine {
            memory,
            faults: Faults::default(),
            notes: Faults::default(),
            trace,
            threads: Vec::new(),
            simds: Vec::new(),
            ready,
            current: 0,
            live: 0,
            barrier: Barrier::default(),
            epochs: [0; 2],
            group: 0,
            group_position: [0; 3],
            report: Report::default(),
            raced: Vec::new(),
            stopped: false,
            module: None,
            same_places: HashMap::new(),
            image,
            variables: Vec::new(),
            bound_bytes: 0,
            overwrite: None,
        }
    }

    pub(super) fn place(&self) -> Option<ThreadPlace> {
        let thread = self.current as u32;
        Some(ThreadPlace {
            thread,
            simdgroup: thread / SIMD_WIDTH as u32,
            lane: thread % SIMD_WIDTH as u32,
            threadgroup: self.group_position,
        })
    }

    pub(super) fn fault(&mut self, kind: FaultKind, site: usize, message: impl FnOnce() -> String) {
        let place = self.place();
        self.faults.add(kind, site, 0, place, message);
    }

    /// Binds threadgroup memory to a slot. Returns the address of its first byte.
    pub(super) fn threadgroup_memory(
        &mut self,
        slot: usize,
        bytes: usize,
        name: String,
        align: usize,
    ) -> io::Result<usize> {
        self.bound_bytes = self.bound_bytes.next_multiple_of(16) + bytes;
        let storage = self.memory.storage(bytes)?;
        let address = self.memory.bind(slot, storage, 0..bytes, name, Access::ReadWrite, align)?;
        self.memory.spoil(slot);
        self.report.threadgroup_bytes = self.bound_bytes as u64;
        if self.bound_bytes > THREADGROUP_LIMIT {
            let bytes = self.bound_bytes;
            self.faults.add(FaultKind::ThreadgroupMemory, 0, 0, None, || {
                format!("{bytes} bytes of threadgroup memory, more than {THREADGROUP_LIMIT}")
            });
        }
        Ok(address)
    }

    /// Returns the address of a threadgroup variable, and binds its memory at the first call.
    /// Returns `None` if no slot or no memory is left.
    pub(super) fn variable(&mut self, key: usize, bytes: usize, name: &str) -> Option<usize> {
        if let Some(known) = self.variables.iter().find(|known| known.key == key) {
            return Some(known.address);
        }
        let slot = VARIABLE_SLOTS + self.variables.len();
        let address = (slot < SLOTS)
            .then(|| self.threadgroup_memory(slot, bytes, format!("'{name}'"), 1).ok())
            .flatten();
        match address {
            Some(address) => self.variables.push(Variable { key, address }),
            None => {
                self.stopped = true;
                self.fault(FaultKind::ThreadgroupMemory, 0, || {
                    format!("no room for threadgroup variable '{name}'")
                });
            }
        }
        address
    }

    /// Fills threadgroup memory with junk at the start of each threadgroup.
    pub(super) fn reset_threadgroup_memory(&mut self) {
        for slot in THREADGROUP_SLOTS..SLOTS {
            self.memory.forget(slot);
            self.memory.spoil(slot);
        }
    }

    pub(super) fn stamps(&self) -> [Stamp; 2] {
        let simd = &self.simds[self.current / SIMD_WIDTH];
        [0, 1].map(|space| {
            Stamp::new(self.group, self.current as u32, self.epochs[space], simd.epochs[space])
        })
    }

    /// Records a step of the current thread in the trace. Stops the dispatch if it has taken too
    /// many steps.
    pub(super) fn step(&mut self, site: usize, at: usize) {
        self.stopped |= self.trace.step(self.current, site, at);
    }

    /// Checks an access of the current thread. Returns whether the thread must stop.
    pub(super) fn access(&mut self, at: usize, bytes: usize, kind: u32, site: usize) -> bool {
        if self.overwrite.is_some() {
            self.settle();
        }
        let Some((slot, within)) = self.memory.arena.slot(at) else {
            return self.outside(at, bytes, kind, site);
        };
        self.step(site, slot << 48 ^ within);
        let stamps = self.stamps();
        let instruction = self.threads[self.current].loads.next(stamps[0]);
        let when = When { stamps, instruction, site };
        let place = self.place();
        let (faults, raced) = (&mut self.faults, &mut self.raced);
        let overwrite = &mut self.overwrite;
        let mut located = false;
        let inside = self.memory.access(slot, at, bytes, kind, when, |region, trouble| {
            located = true;
            let verb = if kind & WRITE != 0 { "store" } else { "load" };
            let name = &region.name;
            let offset = at.wrapping_sub(region.low) as isize;
            let mut race = None;
            let (fault, message) = match trouble {
                Trouble::OutOfBounds => (
                    FaultKind::OutOfBounds,
                    format!(
                        "{verb} of {bytes} bytes at offset {offset} of {name}, which has {} bytes",
                        region.high - region.low
                    ),
                ),
                Trouble::ReadOnly => (
                    FaultKind::ReadOnlyWrite,
                    format!("store to {name}, which is bound for reading"),
                ),
                Trouble::Misaligned(natural) => (
                    FaultKind::Misaligned,
                    format!("{verb} at offset {offset} of {name} needs an alignment of {natural}"),
                ),
                Trouble::Uninitialized => (
                    FaultKind::UninitializedRead,
                    format!("{verb} at offset {offset} of {name} before any store to it"),
                ),
                Trouble::Race(before, byte, other) => {
                    race = Some((byte, other));
                    let other = if before.wrote { "store" } else { "load" };
                    let message = format!(
                        "{verb} at offset {offset} of {name} races with the {other} of {}",
                        before.stamp
                    );
                    (FaultKind::DataRace, message)
                }
                Trouble::Overwrites(before, byte, other) => {
                    let sites = (site, other);
                    *overwrite = Some(Overwrite { before, byte, sites, slot, offset, place });
                    return;
                }
            };
            let earlier = race.and_then(|(_, other)| other);
            let sites = (site, earlier);
            let is_new = faults.add_pair(fault, sites, slot as u32, place, || message);
            if let (true, Some((byte, None))) = (is_new, race) {
                raced.push(byte);
            }
        });
        if !inside && !located {
            self.fault(FaultKind::OutOfBounds, site, || {
                format!("access of {bytes} bytes at an address that nothing is bound to")
            });
        }
        self.stopped |= !inside;
        self.stopped
    }

    /// Classifies the race between the last store and an earlier store. If both stored the same
    /// value, the race is a note and not a fault.
    #[cold]
    pub(super) fn settle(&mut self) {
        let Some(overwrite) = self.overwrite.take() else { return };
        let Overwrite { before, byte, sites, slot, offset, place } = overwrite;
        let same = self.memory.is_unchanged();
        let (list, store) = match same {
            true => (&mut self.notes, "a store of the same value by"),
            false => (&mut self.faults, "the store of"),
        };
        let name = self.memory.regions[slot].as_ref().map_or("", |region| region.name.as_str());
        let is_new = list.add_pair(FaultKind::DataRace, sites, slot as u32, place, || {
            format!("store at offset {offset} of {name} races with {store} {}", before.stamp)
        });
        if is_new && sites.1.is_none() {
            self.raced.push(byte);
        }
    }

    /// Handles an access outside all bindings. A thread may access its stack, and may read the
    /// program's constants.
    fn outside(&mut self, at: usize, bytes: usize, kind: u32, site: usize) -> bool {
        let stack = &self.threads[self.current].stack;
        if stack.contains(&at) {
            let within = at - stack.start;
            self.step(site, within);
            return self.stopped;
        }
        if self.image.contains(&at) && kind & WRITE == 0 {
            self.step(site, at);
            return self.stopped;
        }
        let (fault, message) = if self.image.contains(&at) {
            (FaultKind::ReadOnlyWrite, "store to a constant of the program".to_string())
        } else {
            let verb = if kind & READ != 0 { "load" } else { "store" };
            let message = format!("{verb} of {bytes} bytes at {at:#x}, which is in no buffer");
            (FaultKind::OutOfBounds, message)
        };
        self.fault(fault, site, || message);
        self.stopped = true;
        true
    }

    pub(super) fn division_by_zero(&mut self, site: usize) {
        let text = "an integer is divided by 0, or its remainder taken";
        self.fault(FaultKind::DivisionByZero, site, || text.to_string());
        self.stopped = true;
    }

    pub(super) fn array_bounds(&mut self, index: u64, site: usize) {
        self.fault(FaultKind::ArrayBounds, site, || {
            format!("index {} is outside the array", index as i64)
        });
        self.stopped = true;
    }
}
