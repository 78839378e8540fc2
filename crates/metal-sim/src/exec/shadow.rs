//! The history of each byte: which threads accessed it last, and after how many barriers.

use std::fmt;

/// Bits for the kind of an access. include/msl/runtime.h and runtime/runtime.cpp use the same
/// values.
pub(super) const READ: u32 = 1;
pub(super) const WRITE: u32 = 2;
pub(super) const ATOMIC: u32 = 8;

/// The thread and the time of an access, in 64 bits: the threadgroup + 1 (24 bits), the thread
/// (10), the barriers passed by the threadgroup (15) and by the SIMD group (14), and whether an
/// atomic operation wrote (1). Zero means that there was no access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp(u64);

const EPOCH: u64 = (1 << 15) - 1;
const SIMD_EPOCH: u64 = (1 << 14) - 1;

impl Stamp {
    pub(super) fn new(group: u32, thread: u32, epoch: u32, simd_epoch: u32) -> Self {
        Stamp(
            (u64::from(group) + 1) << 40
                | u64::from(thread) << 30
                | (u64::from(epoch) & EPOCH) << 15
                | (u64::from(simd_epoch) & SIMD_EPOCH) << 1,
        )
    }

    fn wrote(self) -> bool {
        self.0 & 1 != 0
    }

    pub(super) fn thread(self) -> u32 {
        (self.0 >> 30 & 0x3ff) as u32
    }

    /// The threadgroup, by its number in the grid.
    pub(super) fn group(self) -> u32 {
        (self.0 >> 40).wrapping_sub(1) as u32
    }

    pub(super) fn same_group(self, other: Stamp) -> bool {
        self.0 >> 40 == other.0 >> 40
    }

    /// Whether the same thread made both accesses, without a barrier between them.
    pub(super) fn is_at(self, other: Stamp) -> bool {
        self.0 | 1 == other.0 | 1
    }

    /// Whether a release fence covers this access. The thread of the fence must not have accessed
    /// the byte after the fence.
    pub(super) fn is_released_by(self, fence: Stamp) -> bool {
        let epoch = |stamp: Stamp| stamp.0 >> 15 & EPOCH;
        let passed = epoch(fence).wrapping_sub(epoch(self)) & EPOCH;
        let by_itself = passed == 0 && self.thread() == fence.thread();
        self.same_group(fence) && (by_itself || (1..=EPOCH / 2).contains(&passed))
    }

    /// Whether no barrier orders this access before the access of `now` by another thread, so that
    /// the two accesses race.
    pub(super) fn races(self, now: Stamp) -> bool {
        if self.0 == 0 || self.0 >> 30 == now.0 >> 30 {
            return false; // by nobody, or by the same thread
        }
        if !self.same_group(now) {
            return true; // nothing orders threadgroups of one dispatch
        }
        let epoch = |stamp: Stamp| stamp.0 >> 15 & EPOCH;
        let simd_epoch = |stamp: Stamp| stamp.0 >> 1 & SIMD_EPOCH;
        let same_simd = self.thread() / 32 == now.thread() / 32;
        epoch(self) == epoch(now) && !(same_simd && simd_epoch(self) != simd_epoch(now))
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {} of threadgroup number {}", self.thread(), self.group())
    }
}

/// Counts the waits and memory accesses of a thread, to find the accesses that the lanes of a SIMD
/// group make with one instruction. Two lanes count as being at the same instruction if they have
/// waited equally often for other lanes, and have made equally many accesses since the last wait.
/// Lanes that took different branches since that wait may count as being at different instructions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loads {
    waits: u32,
    accesses: u32,
}

impl Loads {
    pub(super) fn wait(&mut self) {
        *self = Loads { waits: self.waits + 1, accesses: 0 };
    }

    /// Returns a number that identifies the instruction of a thread's next access, equal for lanes
    /// that are at the same instruction: 24 bits for the threadgroup, 5 for the SIMD group, 20 for
    /// the waits and 15 for the accesses.
    pub(super) fn next(&mut self, stamp: Stamp) -> u64 {
        self.accesses += 1;
        stamp.0 >> 40 << 40
            | u64::from(stamp.thread() / 32) << 35
            | u64::from(self.waits & 0xf_ffff) << 15
            | u64::from(self.accesses & 0x7fff)
    }
}

/// The earlier of two accesses that race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Earlier {
    pub(super) stamp: Stamp,
    pub(super) wrote: bool,
}

/// Returns the first access in `earlier` that races with the access at `now`. Accesses that a fence
/// orders do not race.
#[inline(always)]
fn first<const N: usize>(
    earlier: [(Stamp, bool); N],
    now: Stamp,
    fenced: &impl Fn(Stamp) -> bool,
) -> Option<Earlier> {
    let earlier = earlier.into_iter().map(|(stamp, wrote)| Earlier { stamp, wrote });
    earlier.into_iter().find(|before| before.stamp.races(now) && !fenced(before.stamp))
}

/// The history of one byte.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    pub(super) write: Stamp,
    /// The last load, and the last load by another thread. A store does not race with a load by its
    /// own thread, but may race with the load by the other thread.
    pub(super) read: Stamp,
    pub(super) other_read: Stamp,
    /// The last atomic access. A read does not replace another thread's write if no barrier is
    /// between them. An atomic access races with plain accesses, but not with atomic accesses.
    atomic: Stamp,
}

impl Cell {
    /// Records an access, and returns the earlier access with which it races. For a store, the
    /// first entry is a load or an atomic access, and the second entry is a store.
    #[inline(always)]
    pub(super) fn access(
        &mut self,
        now: Stamp,
        kind: u32,
        fenced: impl Fn(Stamp) -> bool,
    ) -> [Option<Earlier>; 2] {
        match (kind & ATOMIC != 0, kind & WRITE != 0) {
            (true, writes) => [self.atomic(now, writes, fenced), None],
            (false, true) => self.store(now, fenced),
            (false, false) => [self.load(now, fenced), None],
        }
    }

    /// Records a load, and returns the earlier access with which it races.
    pub(super) fn load(&mut self, now: Stamp, fenced: impl Fn(Stamp) -> bool) -> Option<Earlier> {
        let atomic = if self.atomic.wrote() { self.atomic } else { Stamp::default() };
        let race = first([(self.write, true), (atomic, true)], now, &fenced);
        if self.read.0 >> 30 != now.0 >> 30 {
            self.other_read = self.read;
        }
        self.read = now;
        race
    }

    /// Records a store, and returns the earlier load or atomic access and the earlier store with
    /// which it races.
    pub(super) fn store(
        &mut self,
        now: Stamp,
        fenced: impl Fn(Stamp) -> bool,
    ) -> [Option<Earlier>; 2] {
        let atomic = (self.atomic, self.atomic.wrote());
        let reads = [(self.read, false), (self.other_read, false), atomic];
        let written = [(self.write, true)];
        let earlier = [first(reads, now, &fenced), first(written, now, &fenced)];
        self.write = now;
        earlier
    }

    /// Records an atomic access, and returns the earlier plain access with which it races.
    pub(super) fn atomic(
        &mut self,
        now: Stamp,
        writes: bool,
        fenced: impl Fn(Stamp) -> bool,
    ) -> Option<Earlier> {
        if writes {
            self.atomic = Stamp(now.0 | 1);
        } else if !(self.atomic.wrote() && self.atomic.races(now)) {
            self.atomic = now;
        }
        let reads = if writes { [self.read, self.other_read] } else { Default::default() };
        first([(self.write, true), (reads[0], false), (reads[1], false)], now, &fenced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unfenced(_: Stamp) -> bool {
        false
    }

    #[test]
    fn barriers_order() {
        let first = Stamp::new(0, 1, 0, 0);
        assert!(first.races(Stamp::new(0, 2, 0, 0)));
        assert!(!first.races(Stamp::new(0, 1, 0, 0)));
        assert!(!first.races(Stamp::new(0, 2, 1, 0)));
        assert!(!first.races(Stamp::new(0, 2, 0, 1)));
        assert!(first.races(Stamp::new(0, 40, 0, 1)));
        assert!(first.races(Stamp::new(1, 2, 1, 0)));
    }

    #[test]
    fn lanes_load_together() {
        let (mut one, mut other, mut elsewhere) = <(Loads, Loads, Loads)>::default();
        let at = |thread| Stamp::new(0, thread, 0, 0);
        let first = one.next(at(1));
        assert_eq!(first, other.next(at(31)));
        assert_ne!(first, elsewhere.next(at(32)));
        assert_ne!(first, one.next(at(1)));
        one.wait();
        assert_ne!(first, one.next(at(1)));
        other.wait();
        assert_eq!(one.next(at(1)), {
            other.next(at(31));
            other.next(at(31))
        });
    }

    #[test]
    fn second_reader_is_remembered() {
        let mut cell = Cell::default();
        assert!(cell.load(Stamp::new(0, 1, 0, 0), unfenced).is_none());
        assert!(cell.load(Stamp::new(0, 2, 0, 0), unfenced).is_none());
        let [load, store] = cell.store(Stamp::new(0, 2, 0, 0), unfenced);
        assert!(load.is_some_and(|before| before.stamp.thread() == 1) && store.is_none());
    }

    #[test]
    fn stores_are_told_from_loads() {
        let mut cell = Cell::default();
        assert_eq!(cell.store(Stamp::new(0, 1, 0, 0), unfenced), [None, None]);
        let [load, store] = cell.store(Stamp::new(0, 2, 0, 0), unfenced);
        assert!(load.is_none() && store.is_some_and(|before| before.stamp.thread() == 1));
        assert!(cell.load(Stamp::new(0, 1, 0, 0), unfenced).is_some());
        assert!(cell.store(Stamp::new(0, 2, 0, 0), unfenced)[0].is_some());
    }

    #[test]
    fn atomics_race_with_plain_accesses_only() {
        let mut cell = Cell::default();
        assert_eq!(cell.store(Stamp::new(0, 1, 0, 0), unfenced), [None, None]);
        assert!(cell.atomic(Stamp::new(0, 1, 0, 0), true, unfenced).is_none());
        assert!(cell.atomic(Stamp::new(0, 2, 0, 0), true, unfenced).is_some());
        assert!(cell.atomic(Stamp::new(0, 1, 1, 0), true, unfenced).is_none());
        assert!(cell.atomic(Stamp::new(0, 2, 1, 0), true, unfenced).is_none());
        assert!(cell.load(Stamp::new(0, 1, 1, 0), unfenced).is_some());
    }
}
