//! The memory that the next job will read, so that helpers can prefetch some of it while they wait.
//!
//! All of this is only a hint. It is read and written without any order, so that a helper may see
//! parts of two descriptions, or memory that has been returned to the system: a prefetch of any
//! address is allowed.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::super::simd::prefetch_far;

/// The most pieces of memory that a job is said to read.
const MOST: usize = 4;
/// Bytes that a helper prefetches: a part of its second-level cache, which has 1 MB or more.
pub const BYTES: usize = 256 << 10;
/// Bytes that are prefetched at once.
pub const STEP: usize = 256;

/// Memory from which each of some items of a job reads as many bytes.
#[derive(Clone, Debug)]
pub struct Read {
    pub address: usize,
    pub bytes_of_item: usize,
    pub items: Range<usize>,
}

/// A job to come.
pub struct Coming {
    items: AtomicUsize,
    threads: AtomicUsize,
    /// Addresses, bytes of an item, and the first and last items.
    reads: [[AtomicUsize; 4]; MOST],
}

impl Coming {
    /// No job.
    pub const fn none() -> Self {
        let reads = [const { [const { AtomicUsize::new(0) }; 4] }; MOST];
        Self { items: AtomicUsize::new(0), threads: AtomicUsize::new(0), reads }
    }

    /// Describes a job with `items` items for `threads` threads. Only the first [`MOST`] reads count.
    pub fn set(&self, items: usize, threads: usize, reads: impl Iterator<Item = Read>) {
        let none = Read { address: 0, bytes_of_item: 0, items: 0..0 };
        store(&self.items, items);
        store(&self.threads, threads);
        for (to, read) in self.reads.iter().zip(reads.chain(std::iter::repeat(none))) {
            let Range { start, end } = read.items;
            for (to, value) in to.iter().zip([read.address, read.bytes_of_item, start, end]) {
                store(to, value);
            }
        }
    }

    pub fn copy(&self, from: &Coming) {
        store(&self.items, from.items.load(Relaxed));
        store(&self.threads, from.threads.load(Relaxed));
        for (to, from) in self.reads.iter().zip(&from.reads) {
            for (to, from) in to.iter().zip(from) {
                store(to, from.load(Relaxed));
            }
        }
    }

    /// The memory that the thread with this share will read first.
    pub fn of_share(&self, share: usize) -> Ahead {
        let (items, threads) = (self.items.load(Relaxed), self.threads.load(Relaxed));
        let mut ahead = Ahead { ranges: [0..0, 0..0], turn: 0 };
        if share >= threads {
            return ahead;
        }
        let start = |share: usize| items.saturating_mul(share) / threads;
        let own = start(share)..start(share + 1);
        let ranges = self.reads.iter().filter_map(|read| {
            let [address, bytes, first, end] = read.each_ref().map(|word| word.load(Relaxed));
            let (from, to) = (own.start.max(first), own.end.min(end));
            let length = to.saturating_sub(from).saturating_mul(bytes).min(BYTES / 2);
            let from = from.wrapping_sub(first).wrapping_mul(bytes).wrapping_add(address);
            (length > 0).then(|| from..from.saturating_add(length))
        });
        for (to, range) in ahead.ranges.iter_mut().zip(ranges) {
            *to = range;
        }
        ahead
    }
}

/// Other threads keep the line if nothing changes.
fn store(to: &AtomicUsize, value: usize) {
    if to.load(Relaxed) != value {
        to.store(value, Relaxed);
    }
}

/// The addresses of what is still to be prefetched, [`STEP`] bytes each.
pub struct Ahead {
    ranges: [Range<usize>; 2],
    turn: usize,
}

impl Iterator for Ahead {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let other = &self.ranges[self.turn ^ 1];
        self.turn ^= usize::from(other.start < other.end);
        let range = &mut self.ranges[self.turn];
        let address = range.start;
        range.start = address.saturating_add(STEP);
        (address < range.end).then_some(address)
    }
}

impl Ahead {
    /// Prefetches the next bytes. Returns false if none are left.
    pub fn step(&mut self) -> bool {
        let next = self.next();
        if let Some(address) = next {
            prefetch_far(std::ptr::without_provenance(address), STEP);
        }
        next.is_some()
    }
}
