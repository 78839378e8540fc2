//! Decides by measurement whether a short job should be shared.
//!
//! On one virtual machine (Zen 4) a cache line went to the other core and back in 50 ns in some
//! runs and in 330 ns in others, so the cost of sharing is not known beforehand. Therefore a few
//! jobs are timed, some of them alone and some shared, and the other jobs run in the way that was
//! faster for jobs of similar size.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The number of classes of jobs that may run either alone or shared. The work of two jobs of a
/// class differs by less than a factor of two.
const CLASSES: usize = 3;
/// One of this many jobs is timed. The number is prime, so that every op of a repeated sequence is
/// timed sooner or later.
const TIMED: u32 = 13;
/// The number of jobs over which a mean time is taken.
const COVERED: u32 = 8;
/// A job's time counts as at most this many times the mean, since a job that took longer was
/// probably interrupted.
const LONGEST: u32 = 3;

/// The measured times of jobs, by their estimated work. [`choose`](Self::choose) compares these
/// times.
pub struct Worth {
    least: usize,
    classes: [Class; CLASSES],
}

#[derive(Default)]
struct Class {
    jobs: AtomicU32,
    /// The mean times, alone and shared, in thousandths of the estimated time; zero if unknown.
    means: [AtomicU32; 2],
}

/// How a job should run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub shared: bool,
    /// Whether the caller should measure the time and [`record`](Worth::record) it.
    pub timed: bool,
}

impl Worth {
    /// Makes choices for jobs of at least `least` work, in tenths of a nanosecond.
    pub fn new(least: usize) -> Self {
        Self { least, classes: Default::default() }
    }

    /// The class of a job, or `None` if there is only one choice: smaller jobs run alone, larger
    /// jobs are shared.
    fn class(&self, work: usize) -> Option<&Class> {
        self.classes.get((work / self.least).checked_ilog2()? as usize)
    }

    /// Chooses how a job of this work runs.
    pub fn choose(&self, work: usize) -> Choice {
        let Some(class) = self.class(work) else {
            return Choice { shared: work >= self.least, timed: false };
        };
        let job = class.jobs.fetch_add(1, Relaxed);
        if job % TIMED == 0 {
            // Choose by bits with a long period, since the ops of a token repeat.
            let shared = (job / TIMED).wrapping_mul(0x9e37_79b9) >> 31 == 1;
            return Choice { shared, timed: true };
        }
        let [alone, shared] = [0, 1].map(|i| class.means[i].load(Relaxed));
        Choice { shared: shared <= alone || alone == 0, timed: false }
    }

    /// Records the time of a job that ran alone or shared.
    pub fn record(&self, work: usize, shared: bool, nanoseconds: u128) {
        let Some(class) = self.class(work) else { return };
        let mean = &class.means[usize::from(shared)];
        let time = (nanoseconds * 10_000 / work as u128).clamp(1, 1 << 20) as u32;
        let old = mean.load(Relaxed);
        let time = if old == 0 { time } else { time.min(LONGEST * old) };
        let new = if old == 0 { time } else { (old * (COVERED - 1) + time).div_ceil(COVERED) };
        mean.store(new, Relaxed);
    }
}
