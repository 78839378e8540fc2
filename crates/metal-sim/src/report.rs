//! The results of a dispatch, and the faults that the simulator found.

use std::collections::BTreeMap;
use std::fmt;

/// The type of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// An access outside every buffer, or across the end of a buffer. It ends the dispatch.
    OutOfBounds,
    /// An index outside an array whose size the compiler knows. It ends the dispatch.
    ArrayBounds,
    /// An integer division by zero, whose result MSL does not define. It ends the dispatch.
    DivisionByZero,
    /// Two accesses by different threads that neither a barrier nor a fence orders. At least one is
    /// a store, and at most one is atomic. If both store the same value, the race is only a note.
    DataRace,
    /// A load from threadgroup memory or an output before any store to it. If no result, address or
    /// branch depends on the value, the load is only a note.
    UninitializedRead,
    /// Bytes of an output that no thread wrote.
    UnwrittenOutput,
    /// A store to a buffer bound for reading, or to a constant of the program.
    ReadOnlyWrite,
    /// An address that is not aligned for the type of the access.
    Misaligned,
    /// A threadgroup barrier that not all threads of the group reach.
    DivergentBarrier,
    /// A SIMD-group function that not all lanes reach.
    DivergentSimd,
    /// A lane reads the value of a lane that is not active.
    InactiveLane,
    /// An argument that is missing, is too small, or matches no parameter of the kernel.
    Argument,
    /// Threadgroup memory that is missing, is too large, or has a wrong size.
    ThreadgroupMemory,
    /// A threadgroup that is too large for the kernel or for Apple's GPUs, or a grid that is empty
    /// or too large for the simulator.
    GridSize,
}

/// A place in the source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The path of the file, as it was passed to the compiler.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
}

/// A fault of a kernel or of its dispatch. Only the first occurrence is recorded.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The kind of the fault.
    pub kind: FaultKind,
    /// A description of the fault.
    pub message: String,
    /// The source lines, from the innermost call to its callers. Empty for faults of the whole
    /// dispatch.
    pub places: Vec<Place>,
    /// For a race, the source lines of the earlier access, in the same order.
    pub earlier: Vec<Place>,
    /// The thread that caused the fault; `None` if no single thread did.
    pub thread: Option<ThreadPlace>,
    /// How often it happened.
    pub times: u64,
}

/// The position of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadPlace {
    /// Index in the threadgroup.
    pub thread: u32,
    /// The SIMD group in the threadgroup.
    pub simdgroup: u32,
    /// The lane in the SIMD group.
    pub lane: u32,
    /// The position of the threadgroup in the grid.
    pub threadgroup: [u32; 3],
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = self.places.first() {
            write!(f, "{}:{}: ", place.file, place.line)?;
        }
        write!(f, "{:?}: {}", self.kind, self.message)?;
        if let Some(place) = self.earlier.first() {
            write!(f, ", at {}:{}", place.file, place.line)?;
        }
        if let Some(at) = self.thread {
            let [x, y, z] = at.threadgroup;
            write!(f, " (thread {}, SIMD group {}, lane {}", at.thread, at.simdgroup, at.lane)?;
            write!(f, ", threadgroup {x},{y},{z})")?;
        }
        if self.times > 1 {
            write!(f, ", {} times", self.times)?;
        }
        Ok(())
    }
}

/// Traffic of one buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of loads, counted for each lane.
    pub loads: u64,
    /// The number of stores, counted for each lane.
    pub stores: u64,
    /// The bytes of all loads, counted for each lane.
    pub read_bytes: u64,
    /// The bytes of all loads. If several lanes of a SIMD group load a byte with the same
    /// instruction, the byte counts once.
    pub fetched_bytes: u64,
    /// Bytes of all stores.
    pub written_bytes: u64,
    /// The number of different bytes that were loaded.
    pub distinct_read: u64,
    /// The number of different bytes that were stored.
    pub distinct_written: u64,
}

/// The results of a dispatch.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The faults, in the order of first occurrence.
    pub faults: Vec<Fault>,
    /// The accesses that look like a fault but do not change a result, in the order of first
    /// occurrence.
    pub notes: Vec<Fault>,
    /// The traffic of each buffer, by buffer index.
    pub buffers: BTreeMap<u32, Traffic>,
    /// The traffic of all threadgroup memory together. Distinct bytes are not counted.
    pub threadgroup: Traffic,
    /// Threads that ran.
    pub threads: u64,
    /// Threadgroups that ran.
    pub threadgroups: u64,
    /// The number of threadgroup barriers. A barrier counts once for each threadgroup that passes
    /// it.
    pub threadgroup_barriers: u64,
    /// The number of SIMD-group barriers. A barrier counts once for each SIMD group that passes it.
    pub simdgroup_barriers: u64,
    /// The number of exchanges of values between lanes, such as a `simd_sum`. An exchange counts
    /// once for each SIMD group.
    pub simd_operations: u64,
    /// The bytes of threadgroup memory that a threadgroup uses: the bound arguments and the
    /// variables that the kernel declares.
    pub threadgroup_bytes: u64,
    pub(crate) contents: BTreeMap<u32, Vec<u8>>,
}

impl Report {
    /// The contents of a buffer that the dispatch owns, after the kernel has run.
    pub fn contents(&self, index: u32) -> Option<&[u8]> {
        self.contents.get(&index).map(Vec::as_slice)
    }

    /// The bytes that the dispatch moved to and from device memory: loads and stores of all
    /// buffers.
    pub fn device_bytes(&self) -> u64 {
        self.buffers.values().map(|traffic| traffic.read_bytes + traffic.written_bytes).sum()
    }
}
