//! Prepares and runs one dispatch of a kernel.

use std::collections::BTreeMap;

use crate::buffer::{Access, Buffer, Plain, bytes_of};
use crate::exec::Schedule;
use crate::library::Kernel;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Grid {
    Groups([u32; 3]),
    Threads([u32; 3]),
}

/// A builder for a dispatch. The dispatch runs on the calling thread.
///
/// See [`crate::Library::compile`] for an example.
pub struct Dispatch<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) buffers: BTreeMap<u32, Buffer<'a>>,
    pub(crate) threadgroup: BTreeMap<u32, usize>,
    pub(crate) grid: Grid,
    pub(crate) group: [u32; 3],
    pub(crate) schedule: Schedule,
}

impl<'a> Dispatch<'a> {
    /// Starts a dispatch of one thread without arguments.
    pub fn new(kernel: &'a Kernel) -> Self {
        Dispatch {
            kernel,
            buffers: BTreeMap::new(),
            threadgroup: BTreeMap::new(),
            grid: Grid::Groups([1; 3]),
            group: [1; 3],
            schedule: Schedule::Forward,
        }
    }

    /// Binds `[[buffer(index)]]`.
    pub fn buffer(mut self, index: u32, buffer: Buffer<'a>) -> Self {
        self.buffers.insert(index, buffer);
        self
    }

    /// Binds a copy of `bytes` to `[[buffer(index)]]`, as `setBytes` does.
    pub fn bytes(self, index: u32, bytes: &[u8]) -> Self {
        let buffer = Buffer::with(bytes.to_vec(), Access::Read);
        self.buffer(index, buffer)
    }

    /// Binds a copy of one value to `[[buffer(index)]]`.
    pub fn value<T: Plain>(self, index: u32, value: T) -> Self {
        self.bytes(index, &bytes_of(&[value]))
    }

    /// Binds `bytes` bytes of threadgroup memory to `[[threadgroup(index)]]`.
    pub fn threadgroup(mut self, index: u32, bytes: usize) -> Self {
        self.threadgroup.insert(index, bytes);
        self
    }

    /// Sets the number of threadgroups and the number of threads in each threadgroup, as
    /// `dispatchThreadgroups` does.
    pub fn grid_groups(mut self, groups: [u32; 3], threads_per_group: [u32; 3]) -> Self {
        (self.grid, self.group) = (Grid::Groups(groups), threads_per_group);
        self
    }

    /// Sets the total number of threads and the number of threads in each threadgroup, as
    /// `dispatchThreads` does. Threadgroups at the end of each axis may be smaller.
    pub fn threads(mut self, threads: [u32; 3], threads_per_group: [u32; 3]) -> Self {
        (self.grid, self.group) = (Grid::Threads(threads), threads_per_group);
        self
    }

    /// Chooses the order in which threads run.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }
}
