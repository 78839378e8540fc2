//! The shares of a job: each thread's part of the items, and how much of it has been taken.
//!
//! A share has at most [`MAX_UNITS`] units. Its word holds the number of the last job whose units
//! were taken from it, how many units are taken, and how many threads run taken units. Every change
//! is one compare-and-exchange or subtraction of a whole word, so that:
//!
//! 1. The numbers of jobs only grow. The first `take` for a job moves a share to this job.
//! 2. A job is done when all units of all its shares are taken and no thread runs a unit.
//!    Afterwards no unit of the job can be taken. Each of its shares either has the number of the
//!    job and no unit left, or has the number of a later job, and then `take` refuses too.
//! 3. A successful `take` therefore proves that the job is not done, and that it cannot become
//!    done before the thread has called `leave`. Only between these two calls may a thread use the
//!    memory of the job's caller.
//! 4. `leave` releases and `is_idle` acquires. All changes between them are read-modify-writes,
//!    which continue the release sequence, so the caller sees all writes of a thread that has left.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest number of units in a share.
pub const MAX_UNITS: usize = 127;

/// A value that shares no cache line with other values. Some processors fetch lines in pairs.
#[repr(align(128))]
pub struct Line<T>(pub T);

/// The data of a job that a thread needs to take units from its shares, packed in one word. It has
/// the number of the job, which does not overflow for many years, the number of units in a share,
/// and the number of shares.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Call(u64);

const NUMBER: u32 = 18;
const UNITS: u32 = 11;
const _: () = assert!(MAX_UNITS < 1 << (NUMBER - UNITS));

impl Call {
    /// The call before the first one.
    pub const NONE: u64 = 0;

    /// The call after `self`, with `shares` shares (at most 2047) of `units` units each.
    pub fn after(self, shares: usize, units: usize) -> Call {
        debug_assert!(shares < 1 << UNITS && (1..=MAX_UNITS).contains(&units));
        Call((self.number() + 1) << NUMBER | (units as u64) << UNITS | shares as u64)
    }

    pub fn from_word(word: u64) -> Call {
        Call(word)
    }

    pub fn word(self) -> u64 {
        self.0
    }

    pub fn number(self) -> u64 {
        self.0 >> NUMBER
    }

    pub fn shares(self) -> usize {
        (self.0 & ((1 << UNITS) - 1)) as usize
    }

    pub fn units(self) -> usize {
        (self.0 >> UNITS & ((1 << (NUMBER - UNITS)) - 1)) as usize
    }
}

/// The function that runs a range of a job's items.
pub type Body<'a> = dyn Fn(Range<usize>) + Sync + 'a;

/// The caller's job, as the helpers see it.
#[derive(Clone, Copy)]
pub struct Job {
    pub body: *const Body<'static>,
    pub items: usize,
}

impl Job {
    /// The first item of unit `unit` of share `share`.
    pub fn start(&self, call: Call, share: usize, unit: usize) -> usize {
        let (units, all) = (share * call.units() + unit, call.shares() * call.units());
        match self.items.checked_mul(units) {
            Some(product) => product / all,
            None => (self.items as u128 * units as u128 / all as u128) as usize,
        }
    }
}

/// Aborts the process if a panic unwinds. Otherwise helpers would be left with a dangling body, and
/// the job would be half done.
pub struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// The state of a share in one word: the number of the last job, how many units are taken, and how
/// many threads run some of them.
pub struct Share(AtomicU64);

const LAST: u32 = 16;
const TAKEN: u32 = 8;
const RUNNING: u64 = (1 << TAKEN) - 1;
/// If a share has fewer units than this, its thread takes half of the units that are left at a
/// time, otherwise a quarter.
const MANY_UNITS: usize = 16;

impl Share {
    pub fn new() -> Share {
        Share(AtomicU64::new(Call::NONE))
    }

    /// Takes some of the units that are left in a share. From its `own` share, a thread takes half
    /// of them, or a quarter of them if the share has at least `MANY_UNITS` units in all. From
    /// another share, it takes half of that number. Afterwards the thread counts as running, until
    /// it calls [`leave`](Self::leave). `inside` means that the thread already counts as running.
    pub fn take(&self, call: Call, own: bool, inside: bool) -> Option<Range<usize>> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (taken, running) = match (word >> LAST).cmp(&call.number()) {
                // An earlier job is done, so no thread runs a unit of it.
                std::cmp::Ordering::Less => (0, 0),
                std::cmp::Ordering::Equal => ((word >> TAKEN & 255) as usize, word & RUNNING),
                std::cmp::Ordering::Greater => return None,
            };
            let left = call.units() - taken;
            if left == 0 {
                return None;
            }
            // Parts get shorter, so that threads end at nearly the same time.
            let parts = if call.units() < MANY_UNITS { 2 } else { 4 };
            let end = taken + left.div_ceil(if own { parts } else { 2 * parts });
            let running = running + u64::from(!inside);
            let next = call.number() << LAST | (end as u64) << TAKEN | running;
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(taken..end),
                Err(now) => word = now,
            }
        }
    }

    /// Ends the time in which the thread counts as running. This time began with the last
    /// [`take`](Self::take) that was not `inside`.
    pub fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Whether no thread runs units of this share.
    pub fn is_idle(&self) -> bool {
        self.0.load(Ordering::Acquire) & RUNNING == 0
    }
}
