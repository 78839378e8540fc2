//! Fork-join over index ranges: the calling thread and a few helpers share one job.
//!
//! A helper joins a job only while it is open, and the caller waits for those that joined,
//! so a helper the system has not scheduled never holds a job up. A second caller finds the
//! pool taken and does its work alone: no queue, hence no deadlock. Helpers spin briefly after
//! a job and then park; they hold nothing, so the process may exit at any time.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::simd::fence;

/// Work, in tenths of a nanosecond of one core, below which a job is not worth sharing with a
/// helper that is still spinning, or not worth waking a parked one for.
const SHARED_WORK: usize = 100_000;
const WAKING_WORK: usize = 400_000;
/// How long a helper spins for the next job before it parks, and a guest before it leaves.
const SPIN: Duration = Duration::from_micros(30);
const LENT: Duration = Duration::from_micros(100);
/// Ranges handed out per thread, later ones shorter, which evens out a disturbed core.
const RANGES_PER_THREAD: usize = 4;

/// The most threads of a pool, more than any machine has cores.
pub const MAX_THREADS: usize = 1024;

static CURRENT: OnceLock<&Pool> = OnceLock::new();

/// `state`: job number in the upper half, then the open flag, then how many helpers are inside.
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;
const NUMBER: u64 = 1 << 32;

type Body<'a> = dyn Fn(Range<usize>) + Sync + 'a;

/// The caller's job, as the helpers see it.
#[derive(Clone, Copy)]
struct Job {
    body: *const Body<'static>,
    items: usize,
    threads: usize,
}

impl Job {
    /// The first item of range `index`. The ranges of a thread are a half, a quarter, an eighth and
    /// an eighth of its even share, so that threads end at nearly the same time.
    fn start(&self, index: usize) -> usize {
        let threads = self.threads;
        let eighths = match index / threads {
            0 => 4 * index,
            1 => 2 * threads + 2 * index,
            _ => 4 * threads + index,
        };
        (self.items as u128 * eighths as u128 / (8 * threads as u128)) as usize
    }
}

struct Helper {
    parked: AtomicBool,
    thread: OnceLock<Thread>,
}

pub struct Pool {
    taken: AtomicBool,
    state: AtomicU64,
    next: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    helpers: Box<[Helper]>,
    /// Threads that help while they wait for a result; this many helpers may stay parked.
    pub guests: AtomicUsize,
}

// SAFETY: `job` is written only by the holder of `taken` while the job is closed and nobody is
// inside, and read only by helpers inside an open job; `state` orders the two.
unsafe impl Sync for Pool {}
// SAFETY: the body's pointer is followed only while the caller keeps it alive.
unsafe impl Send for Pool {}

/// A panic must not leave helpers with a dangling body, nor a job half done.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Pool {
    /// A pool of `threads` in all, the caller included. It lives as long as the process.
    pub fn leak(threads: usize) -> &'static Pool {
        let helpers = (1..threads.max(1))
            .map(|_| Helper { parked: AtomicBool::new(false), thread: OnceLock::new() })
            .collect();
        let pool: &'static Pool = Box::leak(Box::new(Pool {
            taken: AtomicBool::new(false),
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            helpers,
            guests: AtomicUsize::new(0),
        }));
        for (index, helper) in pool.helpers.iter().enumerate() {
            // If the system refuses a thread, there is merely one helper fewer.
            let _ = std::thread::Builder::new()
                .name(format!("mlx-primitives-{index}"))
                .spawn(move || pool.help(helper));
        }
        pool
    }

    /// The process's pool, with the number of threads that [`start`](Self::start) was given, or
    /// `MLX_PRIMITIVES_THREADS` (1 to [`MAX_THREADS`]), or one for each core.
    pub fn current() -> &'static Pool {
        CURRENT.get_or_init(|| {
            let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
            let wanted = Self::wanted().ok().flatten();
            Pool::leak(wanted.unwrap_or_else(cores).min(MAX_THREADS))
        })
    }

    /// The number of threads in `MLX_PRIMITIVES_THREADS`, if the variable is set and not empty.
    ///
    /// # Errors
    ///
    /// Returns the text of the variable, if it is not a number from 1 to [`MAX_THREADS`].
    pub fn wanted() -> Result<Option<usize>, String> {
        let text = std::env::var_os("MLX_PRIMITIVES_THREADS").unwrap_or_default();
        let text = text.to_string_lossy();
        match text.trim().parse() {
            Ok(threads) if (1..=MAX_THREADS).contains(&threads) => Ok(Some(threads)),
            _ if text.is_empty() => Ok(None),
            _ => Err(text.into_owned()),
        }
    }

    /// Starts the process's pool with this number of threads, unless it has been started.
    pub fn start(threads: usize) -> &'static Pool {
        CURRENT.get_or_init(|| Pool::leak(threads))
    }

    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// The number of ranges that a job with this much work is split into.
    pub fn ranges(&self, work: usize) -> usize {
        let watched = || {
            self.guests.load(Ordering::Relaxed) > 0
                || self.helpers.iter().any(|helper| !helper.parked.load(Ordering::Relaxed))
        };
        let shared = work >= WAKING_WORK || work >= SHARED_WORK && watched();
        if self.helpers.is_empty() || !shared { 1 } else { self.threads() * RANGES_PER_THREAD }
    }

    /// Runs `body` over disjoint ranges that cover `0..items`, where an item takes about `work`
    /// tenths of a nanosecond. Small jobs, and jobs that find the pool taken, run on the caller.
    pub fn for_each(&self, items: usize, work: usize, body: &Body) {
        if items == 0 {
            return;
        }
        let work = items.saturating_mul(work);
        if items == 1 || self.ranges(work) == 1 || self.taken.swap(true, Ordering::Acquire) {
            body(0..items);
            return fence();
        }
        let guard = AbortOnUnwind;
        // SAFETY: only the lifetime changes; `close` returns after the last helper has left.
        let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        let job = Job { body, items, threads: self.threads() };
        self.open(job);
        if work >= WAKING_WORK {
            self.wake();
        }
        self.work(job);
        self.close();
        std::mem::forget(guard);
        self.taken.store(false, Ordering::Release);
    }

    fn open(&self, job: Job) {
        // SAFETY: we hold `taken` and the last job is closed and empty.
        unsafe { *self.job.get() = Some(job) };
        self.next.store(0, Ordering::Relaxed);
        // SeqCst here and at the helper's re-check: one of the two sees the other.
        let number = (self.state.load(Ordering::Relaxed) & !INSIDE & !OPEN).wrapping_add(NUMBER);
        self.state.store(number | OPEN, Ordering::SeqCst);
    }

    fn wake(&self) {
        for helper in self.helpers.iter().skip(self.guests.load(Ordering::Relaxed)) {
            if helper.parked.load(Ordering::SeqCst)
                && helper.parked.swap(false, Ordering::SeqCst)
                && let Some(thread) = helper.thread.get()
            {
                thread.unpark();
            }
        }
    }

    /// Takes ranges until none is left, then makes streaming stores visible to the waiting caller.
    fn work(&self, job: Job) {
        let ranges = RANGES_PER_THREAD * job.threads;
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= ranges {
                return fence();
            }
            let range = job.start(index)..job.start(index + 1);
            if !range.is_empty() {
                // SAFETY: the job is open or has us inside, so the caller still holds the body.
                unsafe { (*job.body)(range) };
            }
        }
    }

    /// Lets no further helper in and waits for those inside.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut waited = 0u32;
        while self.state.load(Ordering::Acquire) & INSIDE != 0 {
            waited += 1;
            if waited < 10_000 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// The main loop of a helper.
    fn help(&self, me: &Helper) {
        let _ = me.thread.set(std::thread::current());
        let mut last = 0;
        loop {
            let state = loop {
                if let Some(state) = self.watch(last, SPIN, &|| false) {
                    break state;
                }
                me.parked.store(true, Ordering::SeqCst);
                if !is_fresh(self.state.load(Ordering::SeqCst), last) {
                    std::thread::park();
                }
                me.parked.store(false, Ordering::SeqCst);
            };
            last = self.join(state);
        }
    }

    /// Helps until `done` returns true, or until no job has come for a while.
    pub fn lend(&self, done: &dyn Fn() -> bool) {
        if self.helpers.is_empty() {
            return;
        }
        self.guests.fetch_add(1, Ordering::Relaxed);
        let mut last = 0;
        while let Some(state) = self.watch(last, LENT, done) {
            last = self.join(state);
        }
        self.guests.fetch_sub(1, Ordering::Relaxed);
    }

    /// Does a share of the open job seen in `state`, and returns the last job's number.
    fn join(&self, state: u64) -> u64 {
        let number = state & !INSIDE & !OPEN;
        // The job may have closed, or another thread come in, since `watch` looked.
        if self
            .state
            .compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return number.wrapping_sub(NUMBER);
        }
        let guard = AbortOnUnwind;
        // SAFETY: we are inside an open job, so it is set and stays so until we leave.
        if let Some(job) = unsafe { *self.job.get() } {
            self.work(job);
        }
        std::mem::forget(guard);
        self.state.fetch_sub(1, Ordering::Release);
        number
    }

    /// Waits for an open job other than number `last` and returns the state that shows it. Returns
    /// `None` if `done` returns true first or `patience` runs out.
    fn watch(&self, last: u64, patience: Duration, done: &dyn Fn() -> bool) -> Option<u64> {
        let start = Instant::now();
        while start.elapsed() < patience {
            for _ in 0..32 {
                let state = self.state.load(Ordering::Acquire);
                if is_fresh(state, last) {
                    return Some(state);
                }
                std::hint::spin_loop();
            }
            if done() {
                return None;
            }
            // Another thread may need this core, the caller's own among them.
            std::thread::yield_now();
        }
        None
    }
}

fn is_fresh(state: u64, last: u64) -> bool {
    state & OPEN != 0 && state & !INSIDE & !OPEN != last
}
