//! The memory that the next job will read, so that helpers can prefetch some of it while they wait.
//!
//! A description of this memory is only a hint. While the caller writes a description, a helper may
//! see a mixture of the new description and the last one. The memory may already have been returned
//! to the system. Neither case does harm, because a prefetch of any address is allowed.

use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::super::simd::prefetch_far;

/// The largest number of pieces of memory in a description.
const MOST: usize = 4;
/// The number of bytes that a helper prefetches. They fill only a part of its second-level cache,
/// which has 1 MB in Zen 4 and Zen 5, for example.
pub const BYTES: usize = 256 << 10;
/// The number of bytes that one step prefetches.
pub const STEP: usize = 256;

/// Memory that some items of a job read. Each item reads `bytes_of_item` bytes.
#[derive(Clone, Debug)]
pub struct Read {
    pub address: usize,
    pub bytes_of_item: usize,
    pub items: Range<usize>,
}

/// A description of the memory that the next job reads.
pub struct Coming {
    /// How many times [`copy`](Coming::copy) has set this description.
    number: AtomicUsize,
    /// The number of the last description whose memory [`of_caller`](Coming::of_caller) returned.
    of_caller: AtomicUsize,
    items: AtomicUsize,
    threads: AtomicUsize,
    /// For each read: the address, the number of bytes of an item, the first item, and the end of
    /// the items.
    reads: [[AtomicUsize; 4]; MOST],
}

impl Coming {
    /// A description of no job.
    pub const fn none() -> Self {
        let reads = [const { [const { AtomicUsize::new(0) }; 4] }; MOST];
        let [number, of_caller, items, threads] = [const { AtomicUsize::new(0) }; 4];
        Self { number, of_caller, items, threads, reads }
    }

    /// Describes a job with `items` items for `threads` threads. Keeps only the first [`MOST`]
    /// reads, and does not change the number of the description.
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

    /// Describes the same job as `from`.
    pub fn copy(&self, from: &Coming) {
        store(&self.items, from.items.load(Relaxed));
        store(&self.threads, from.threads.load(Relaxed));
        for (to, from) in self.reads.iter().zip(&from.reads) {
            for (to, from) in to.iter().zip(from) {
                store(to, from.load(Relaxed));
            }
        }
        self.number.store(self.number.load(Relaxed).wrapping_add(1), Release);
    }

    /// The number of the last description that was copied.
    pub fn number(&self) -> usize {
        self.number.load(Acquire)
    }

    /// Replaces `ahead`, the memory that a thread will prefetch, if there is another description.
    /// So the memory of a description is prefetched only once, however many jobs run before the
    /// next description.
    pub fn update(&self, share: usize, ahead: &mut Ahead) {
        let number = self.number();
        if ahead.number != number {
            *ahead = Ahead { number, ..self.of_share(share) };
        }
    }

    /// The memory that the caller of the job will read first. The function returns this memory only
    /// once for each description.
    pub fn of_caller(&self) -> Ahead {
        let number = self.number();
        if self.of_caller.load(Relaxed) == number {
            return Ahead::after(number);
        }
        self.of_caller.store(number, Relaxed);
        self.of_share(0)
    }

    /// The memory that the thread with share number `share` of the items will read first.
    pub fn of_share(&self, share: usize) -> Ahead {
        let (items, threads) = (self.items.load(Relaxed), self.threads.load(Relaxed));
        let mut ahead = Ahead::after(0);
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

/// Stores a value only if it changes, because a store takes the cache line away from other threads.
fn store(to: &AtomicUsize, value: usize) {
    if to.load(Relaxed) != value {
        to.store(value, Relaxed);
    }
}

/// The addresses that a thread has not yet prefetched, with [`STEP`] bytes at each.
pub struct Ahead {
    ranges: [Range<usize>; 2],
    turn: usize,
    /// The number of the description.
    number: usize,
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
    /// Returns an `Ahead` without addresses. [`Coming::update`] replaces it as soon as a
    /// description has another number than `number`.
    pub fn after(number: usize) -> Self {
        Self { ranges: [0..0, 0..0], turn: 0, number }
    }

    /// Prefetches the next bytes. Returns false if none are left.
    pub fn step(&mut self) -> bool {
        let next = self.next();
        if let Some(address) = next {
            prefetch_far(std::ptr::without_provenance(address), STEP);
        }
        next.is_some()
    }
}
