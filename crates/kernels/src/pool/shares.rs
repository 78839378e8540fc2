//! The shares of a job: each thread's part of the items, and how much of it has been taken.
//!
//! A share is counted in units, at most [`MAX_UNITS`] of them. Its word holds the number of the
//! last job that took from it, how many of its units are taken, and how many threads run such
//! units. Every change is one compare-and-exchange or subtraction of a whole word, so that:
//!
//! 1. A job's number only grows, and a share goes from one job to the next by its first `take`.
//! 2. A job is done when all units of all its shares are taken and nobody runs one. Nothing can
//!    be taken from it afterwards, because each of its shares has its number and no unit left, or
//!    the number of a later job, for which `take` refuses too.
//! 3. A successful `take` therefore proves that the job is not done, and that it cannot become
//!    done before the thread has called `leave`. Between the two, and only there, a thread may
//!    use what the job's caller lends to it.
//! 4. `leave` releases and `is_idle` acquires. All changes between are read-modify-writes, which
//!    continue the release sequence, so the caller sees whatever each thread did before it left.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most units of a share.
pub const MAX_UNITS: usize = 127;

/// A place in memory that shares no cache line with others. Some processors fetch lines in pairs.
#[repr(align(128))]
pub struct Line<T>(pub T);

/// All that a thread has to know of a job to take from its shares, in one word: the job's number,
/// which lasts for many years, then the units of a share and the number of shares.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Call(u64);

const NUMBER: u32 = 18;
const UNITS: u32 = 11;
const _: () = assert!(MAX_UNITS < 1 << (NUMBER - UNITS));

impl Call {
    /// The call before the first one.
    pub const NONE: u64 = 0;

    /// The call after `self`, with this many shares (at most 2047) of this many units.
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

/// A panic must not leave helpers with a dangling body, nor a job half done.
pub struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// The number of the last job, then the units taken, then the threads that run some of them.
pub struct Share(AtomicU64);

const LAST: u32 = 16;
const TAKEN: u32 = 8;
const RUNNING: u64 = (1 << TAKEN) - 1;
/// If a share has fewer units than this, a thread takes half of the units that are left, else a
/// quarter.
const MANY_UNITS: usize = 16;

impl Share {
    pub fn new() -> Share {
        Share(AtomicU64::new(Call::NONE))
    }

    /// Takes a part of the units that are left of a share. Of its `own` share, a thread takes half
    /// if few are left, else a quarter; of another share it takes half as many. From then on it
    /// counts as running, until it calls [`leave`](Self::leave). A thread that counts already says
    /// so by `inside`.
    pub fn take(&self, call: Call, own: bool, inside: bool) -> Option<Range<usize>> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (taken, running) = match (word >> LAST).cmp(&call.number()) {
                // Nobody runs a unit of an earlier job, which is done.
                std::cmp::Ordering::Less => (0, 0),
                std::cmp::Ordering::Equal => ((word >> TAKEN & 255) as usize, word & RUNNING),
                std::cmp::Ordering::Greater => return None,
            };
            let left = call.units() - taken;
            if left == 0 {
                return None;
            }
            // Shorter parts come last, so that threads end at nearly the same time.
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

    /// Ends what the last [`take`](Self::take) that was not `inside` began.
    pub fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Whether nobody runs units of this share.
    pub fn is_idle(&self) -> bool {
        self.0.load(Ordering::Acquire) & RUNNING == 0
    }
}
