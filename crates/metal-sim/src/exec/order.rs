//! Tracks the order that fences make between memory accesses. A thread's release fence covers the
//! thread's earlier accesses, and the accesses that its threadgroup made before the last barrier.
//! The atomics that the thread writes afterwards carry this release. A thread that executes an
//! acquire fence then knows all releases that are carried by atomics which its threadgroup has
//! read.

use std::collections::{HashMap, HashSet};

use super::shadow::{ATOMIC, Cell, Earlier, READ, Stamp, WRITE};
use super::watch::Byte;

/// A pseudo-atomic that stands for the barriers of the running threadgroup.
const BARRIER: Byte = (usize::MAX, 0);

/// The releases that a thread or a threadgroup knows: for each atomic, the number of its known
/// releases.
type View = HashMap<Byte, usize>;

/// A release fence: the stamp of its thread, and the number of release fences that the thread has
/// executed so far.
type Fence = (Stamp, usize);

/// The releases that an atomic carries.
#[derive(Default)]
struct Carried {
    count: usize,
    /// For each threadgroup, its release fences, each with the index of its release in this atomic.
    of_group: HashMap<u32, Vec<(Fence, usize)>>,
    /// For each release that passes on releases of other atomics: the releases that it passes on,
    /// and its index.
    passed: Vec<(View, usize)>,
}

/// The state of a thread of the running threadgroup that has executed a fence.
#[derive(Default)]
struct Fenced {
    released: Option<(Fence, View)>,
    /// The atomics that carry the release in `released` already. An atomic need not carry a release
    /// twice, since all later readers of the atomic see the release.
    carried_by: HashSet<Byte>,
    known: View,
}

/// The order that fences make between accesses to device memory.
#[derive(Default)]
pub(super) struct Order {
    /// Whether the kernel has executed a fence. Every access checks this.
    pub(super) is_used: bool,
    carried: HashMap<Byte, Carried>,
    /// The bytes that threads accessed after a release fence. The value has the stamp of the
    /// access, and the number of release fences that the thread had executed.
    late: HashMap<Byte, Fence>,
    /// The threads of the running threadgroup that have executed a fence.
    fenced: HashMap<u32, Fenced>,
    seen: View,
    known: View,
}

fn join(into: &mut View, other: &View) {
    for (&byte, &count) in other {
        let known = into.entry(byte).or_default();
        *known = count.max(*known);
    }
}

impl Order {
    pub(super) fn start_group(&mut self) {
        self.fenced.clear();
        self.carried.remove(&BARRIER);
        self.seen.clear();
        self.known.clear();
    }

    /// Handles a threadgroup barrier. It carries releases like an atomic that all threads write and
    /// then read. After a barrier for device memory, every thread knows all the releases that any
    /// thread of the threadgroup knew.
    pub(super) fn barrier(&mut self, is_for_device: bool) {
        for thread in self.fenced.keys().copied().collect::<Vec<_>>() {
            self.carry(BARRIER, thread);
        }
        if let Some(carried) = self.carried.get(&BARRIER) {
            self.seen.insert(BARRIER, carried.count);
        }
        let known = self.fenced.values().map(|fenced| &fenced.known);
        known.filter(|_| is_for_device).for_each(|known| join(&mut self.known, known));
    }

    pub(super) fn acquire(&mut self, now: Stamp) {
        self.is_used = true;
        let fenced = self.fenced.entry(now.thread()).or_default();
        join(&mut fenced.known, &self.seen);
    }

    pub(super) fn release(&mut self, now: Stamp) {
        self.is_used = true;
        let fenced = self.fenced.entry(now.thread()).or_default();
        let mut known = self.known.clone();
        join(&mut known, &fenced.known);
        known.remove(&BARRIER); // of this threadgroup alone
        let count = fenced.released.as_ref().map_or(0, |((_, count), _)| *count);
        fenced.released = Some(((now, count + 1), known));
        fenced.carried_by.clear();
    }

    /// Records an access of a thread, and returns the earlier accesses that [`Cell::access`] finds.
    #[cold]
    pub(super) fn access(
        &mut self,
        cell: &mut Cell,
        byte: Byte,
        now: Stamp,
        kind: u32,
    ) -> [Option<Earlier>; 2] {
        let races = cell.access(now, kind, |earlier| self.is_before(byte, earlier, now));
        match kind & ATOMIC != 0 {
            true => self.atomic(byte, now, [READ, WRITE].map(|it| kind & it != 0)),
            false => self.plain(byte, now),
        }
        races
    }

    fn atomic(&mut self, object: Byte, now: Stamp, [reads, writes]: [bool; 2]) {
        if let (true, Some(carried)) = (reads, self.carried.get(&object)) {
            self.seen.insert(object, carried.count);
        }
        if writes {
            self.carry(object, now.thread());
        }
    }

    /// Makes an atomic carry the thread's last release, if the thread has executed a release fence.
    fn carry(&mut self, object: Byte, thread: u32) {
        let Some(fenced) = self.fenced.get_mut(&thread) else { return };
        let Some((fence, known)) = &fenced.released else { return };
        if !fenced.carried_by.insert(object) {
            return;
        }
        let (fence, known) = (*fence, known.clone());
        let carried = self.carried.entry(object).or_default();
        let of_group = carried.of_group.entry(fence.0.group()).or_default();
        of_group.push((fence, carried.count));
        if known.keys().any(|other| *other != object) {
            carried.passed.push((known, carried.count));
        }
        carried.count += 1;
    }

    fn plain(&mut self, byte: Byte, now: Stamp) {
        let fenced = self.fenced.get(&now.thread());
        if let Some(((_, count), _)) = fenced.and_then(|fenced| fenced.released.as_ref()) {
            self.late.insert(byte, (now, *count));
        }
    }

    /// Whether the access `earlier` to a byte is ordered before the access at `now`.
    fn is_before(&self, byte: Byte, earlier: Stamp, now: Stamp) -> bool {
        let late = self.late.get(&byte).filter(|(stamp, _)| stamp.is_at(earlier));
        let access = (earlier, late.map_or(0, |(_, count)| *count));
        let own = self.fenced.get(&now.thread()).map(|fenced| &fenced.known);
        [Some(&self.known), own].into_iter().flatten().any(|view| self.covers(view, access))
    }

    /// Whether a release in `view` covers an access, or whether one of these releases passes on a
    /// release that does. Each release is visited once, even if several paths lead to it.
    fn covers(&self, view: &View, (earlier, after): Fence) -> bool {
        let released = |(fence, count): Fence| {
            let is_late = fence.thread() == earlier.thread() && count <= after;
            earlier.is_released_by(fence) && !is_late
        };
        let (mut read, mut left) = (View::new(), vec![view]);
        while let Some(view) = left.pop() {
            for (object, &known) in view {
                let from = read.entry(*object).or_default();
                let Some(carried) = self.carried.get(object).filter(|_| *from < known) else {
                    continue;
                };
                let numbers = *from..known;
                *from = known;
                let releases = carried.of_group.get(&earlier.group()).into_iter().flatten();
                let mut releases = releases.filter(|(_, number)| numbers.contains(number));
                if releases.any(|(fence, _)| released(*fence)) {
                    return true;
                }
                let passed = carried.passed.iter().filter(|(_, number)| numbers.contains(number));
                left.extend(passed.map(|(view, _)| view));
            }
        }
        false
    }
}
