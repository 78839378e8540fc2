//! Fork-join over index ranges: the calling thread and a few helpers share one job.
//!
//! The caller publishes a job by one store. Each thread has a share of the items, which is the same
//! for all jobs of the same size. A thread first takes parts of its share, which costs other
//! threads no time, and then parts of shares that other threads have not finished. So a helper that
//! the system has not scheduled never delays a job: the caller waits only for helpers that run a
//! part. The module `shares` explains why a helper never runs a part of a finished job.
//!
//! A second caller finds the pool taken and runs its job alone. There is no queue, so there is no
//! deadlock. Helpers watch for the next job for a while, prefetch memory that the job will read,
//! and then park. They hold no resources, so the process may exit at any time.
use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::simd::fence;

// The paths are relative to this folder, even if a test includes this file by its path.
#[path = "pool/coming.rs"]
pub mod coming;
#[path = "pool/shares.rs"]
mod shares;
#[path = "pool/worth.rs"]
mod worth;
use coming::{Ahead, Coming};
use shares::{AbortOnUnwind, Body, Call, Job, Line, MAX_UNITS, Share};
pub use worth::{Choice, Worth};

/// A job of `SHARED_WORK` or more is shared with watching helpers, and a job of `WAKING_WORK` or
/// more wakes parked helpers. Work is in tenths of a nanosecond of one core. Sharing with a
/// watching helper takes 0.4 µs (Zen 5) or 1.3 µs (a Xeon), and at times more ([`Worth`]).
const SHARED_WORK: usize = 25_000;
const WAKING_WORK: usize = 400_000;
/// The least work for each thread, each woken helper, and each unit (the smallest part of a job).
const WORK_OF_THREAD: usize = 12_000;
const WORK_OF_WOKEN: usize = 100_000;
const WORK_OF_UNIT: usize = 5_000;
/// From this many threads on, shares have up to [`MAX_UNITS`] units instead of `FEW_UNITS`, since
/// one of many threads is often slow. With two threads, small units cost up to 6 % (Zen 5, a Xeon).
const MANY: usize = 4;
const FEW_UNITS: usize = 8;
/// A helper watches for a job for `SPIN` before it parks, and for up to `LONG_SPIN` while jobs keep
/// coming. A guest, which is a lent thread, watches for `LENT` before it leaves.
const SPIN: Duration = Duration::from_micros(30);
const LONG_SPIN: Duration = Duration::from_millis(1);
const LENT: Duration = Duration::from_micros(100);
/// How many times a thread looks for a job before it yields the core to another thread.
/// `MORE_LOOKS` is for helpers, if there are cores for all threads.
const LOOKS: u32 = 32;
const MORE_LOOKS: u32 = 128;
/// The number of helpers that the caller wakes at once. Each woken helper wakes as many.
const WOKEN: usize = 3;
/// The number of ranges for each thread in the result of [`Pool::ranges`].
const RANGES_PER_THREAD: usize = 4;

/// The largest number of threads in a pool, enough for the cores of almost any machine.
pub const MAX_THREADS: usize = 1024;

static CURRENT: OnceLock<&Pool> = OnceLock::new();

/// The cache line that helpers watch. The caller writes all its fields together.
struct Board {
    call: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    /// Only helpers whose index is less than this number are woken for the job.
    waking: AtomicUsize,
}

struct Helper {
    parked: AtomicBool,
    thread: OnceLock<Thread>,
}

pub struct Pool {
    board: Line<Board>,
    taken: Line<AtomicBool>,
    /// The caller has share 0, and helper `i` has share `i + 1`.
    shares: Box<[Line<Share>]>,
    helpers: Box<[Line<Helper>]>,
    threads: usize,
    worth: Worth,
    coming: Line<Coming>,
    /// The number of guests, which are threads in [`lend`](Self::lend). Each lets a helper park.
    pub guests: AtomicUsize,
    /// The longest time that helpers watch for a job.
    longest: Duration,
    /// How many times a helper looks for a job before it yields the core to another thread.
    looks: u32,
}

// SAFETY: the holder of `taken` writes `job` only after the last job is done. Other threads read it
// between `take` and `leave`, while their job is not done. A reader acquires a store that follows
// the write. Before the caller writes, it acquires the release in `leave`, which follows the reads.
unsafe impl Sync for Pool {}
// SAFETY: the body's pointer is followed only while the caller keeps it alive.
unsafe impl Send for Pool {}

impl Pool {
    /// Makes a pool of `threads` threads, the caller included, for the rest of the process. Threads
    /// beyond the number of cores never take part, since they would have to wait for a core.
    pub fn leak(threads: usize) -> &'static Pool {
        Self::leak_on(threads, cores())
    }

    /// Does the work of [`leak`](Self::leak) for a machine with this many cores.
    pub fn leak_on(threads: usize, available: usize) -> &'static Pool {
        let threads = threads.clamp(1, MAX_THREADS);
        let team = threads.min(available).max(1);
        let helper = |_| Line(Helper { parked: AtomicBool::new(false), thread: OnceLock::new() });
        // With more threads than cores, a watching thread may keep a working thread off its core.
        let spare = team.max(2) <= cores();
        let (longest, looks) = if spare { (LONG_SPIN, MORE_LOOKS) } else { (SPIN, LOOKS) };
        let pool: &'static Pool = Box::leak(Box::new(Pool {
            board: Line(Board {
                call: AtomicU64::new(Call::NONE),
                job: UnsafeCell::new(None),
                waking: AtomicUsize::new(0),
            }),
            taken: Line(AtomicBool::new(false)),
            shares: (0..team).map(|_| Line(Share::new())).collect(),
            helpers: (1..team).map(helper).collect(),
            threads,
            worth: Worth::new(SHARED_WORK),
            coming: Line(Coming::none()),
            guests: AtomicUsize::new(0),
            longest,
            looks,
        }));
        for index in 0..pool.helpers.len() {
            // If the system refuses a thread, the pool merely has one helper fewer.
            let _ = std::thread::Builder::new()
                .name(format!("mlx-primitives-{index}"))
                .spawn(move || pool.help(index));
        }
        pool
    }

    /// The pool of the process. Its number of threads comes from [`start`](Self::start) or from
    /// `MLX_PRIMITIVES_THREADS` (1 to [`MAX_THREADS`]), or is the number of cores.
    pub fn current() -> &'static Pool {
        CURRENT.get_or_init(|| {
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
        self.threads
    }

    /// The number of ranges into which a kernel that chooses ranges itself should split this work.
    pub fn ranges(&self, work: usize) -> usize {
        match self.team(work) {
            1 => 1,
            threads => threads * RANGES_PER_THREAD,
        }
    }

    /// The memory that a later job will probably read, as the caller last described it.
    pub fn coming(&self) -> &Coming {
        &self.coming.0
    }

    /// The number of threads that should run a job with this much work.
    pub fn team(&self, work: usize) -> usize {
        let watched = || {
            self.guests.load(Ordering::Relaxed) > 0
                || self.helpers.iter().any(|helper| !helper.0.parked.load(Ordering::Relaxed))
        };
        let shared = work >= WAKING_WORK || work >= SHARED_WORK && watched();
        if shared && self.shares.len() > 1 {
            (work / WORK_OF_THREAD).min(self.shares.len())
        } else {
            1
        }
    }

    /// Runs `body` over disjoint ranges that cover `0..items`. An item takes about `work` tenths of
    /// a nanosecond. Small jobs, and jobs that find the pool taken, run on the calling thread.
    /// Short jobs also run there, as long as sharing them would be slower ([`Worth`]).
    pub fn for_each(&self, items: usize, work: usize, body: &Body) {
        if items == 0 {
            return;
        }
        let work = items.saturating_mul(work);
        let threads = self.team(work).min(items);
        if threads == 1 {
            return Self::run_alone(items, body);
        }
        let choice = self.worth.choose(work);
        let begin = choice.timed.then(Instant::now);
        let shared = choice.shared && self.share(items, work, threads, body);
        if !shared {
            Self::run_alone(items, body);
        }
        if let Some(begin) = begin {
            self.worth.record(work, shared, begin.elapsed().as_nanos());
        }
    }

    fn run_alone(items: usize, body: &Body) {
        body(0..items);
        fence();
    }

    /// Runs a job on this many threads. Returns false if another caller has the pool.
    fn share(&self, items: usize, work: usize, threads: usize, body: &Body) -> bool {
        if self.taken.0.swap(true, Ordering::Acquire) {
            return false;
        }
        let guard = AbortOnUnwind;
        // SAFETY: only the lifetime changes; `wait` returns when the job is done.
        let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        let most = if threads < MANY { FEW_UNITS } else { MAX_UNITS };
        let units = (work / threads / WORK_OF_UNIT).min(items.div_ceil(threads)).clamp(1, most);
        let waking = if work < WAKING_WORK { 0 } else { (work / WORK_OF_WOKEN).min(threads) - 1 };
        let call = self.publish(Job { body, items }, threads, units, waking);
        if waking > 0 {
            self.wake();
        }
        self.work(call, 0);
        self.wait(call);
        std::mem::forget(guard);
        self.taken.0.store(false, Ordering::Release);
        true
    }

    fn publish(&self, job: Job, threads: usize, units: usize, waking: usize) -> Call {
        let board = &self.board.0;
        let call = Call::from_word(board.call.load(Ordering::Relaxed)).after(threads, units);
        // SAFETY: we hold `taken`, and the last job is done.
        unsafe { *board.job.get() = Some(job) };
        board.waking.store(waking, Ordering::Relaxed);
        // SeqCst, like a helper's last look before parking: one of the two sees the other's store.
        board.call.store(call.word(), Ordering::SeqCst);
        call
    }

    /// Wakes a few parked helpers. Each of them wakes a few more.
    fn wake(&self) {
        let waking = self.board.0.waking.load(Ordering::Relaxed);
        let parked = |helper: &&Helper| {
            helper.parked.load(Ordering::SeqCst) && helper.parked.swap(false, Ordering::SeqCst)
        };
        let helpers = self.helpers.iter().map(|helper| &helper.0).take(waking);
        let helpers = helpers.skip(self.guests.load(Ordering::Relaxed));
        for helper in helpers.filter(parked).take(WOKEN) {
            helper.thread.get().into_iter().for_each(Thread::unpark);
        }
    }

    /// Runs parts of each share, beginning with share `home`, until no part is left.
    fn work(&self, call: Call, home: usize) {
        for at in (home..call.shares()).chain(0..home) {
            let share = &self.shares[at].0;
            let mut taken = share.take(call, at == home, false);
            if taken.is_none() {
                continue;
            }
            let guard = AbortOnUnwind;
            // SAFETY: this thread took a unit, so the job is not done; `job` is set and stays set.
            let job = unsafe { *self.board.0.job.get() };
            while let (Some(job), Some(units)) = (job, taken) {
                let range = job.start(call, at, units.start)..job.start(call, at, units.end);
                if !range.is_empty() {
                    // SAFETY: as above, and the caller keeps the body until the job is done.
                    unsafe { (*job.body)(range) };
                }
                taken = share.take(call, at == home, true);
            }
            // Make streaming stores visible to the waiting caller.
            fence();
            std::mem::forget(guard);
            share.leave();
        }
    }

    /// Waits until the job is done. The caller has already found all units taken.
    fn wait(&self, call: Call) {
        let (mut looks, mut ahead) = (0, self.coming.0.of_caller());
        for share in &self.shares[..call.shares()] {
            while !share.0.is_idle() {
                looks += 1;
                if looks >= 10 * self.looks {
                    std::thread::yield_now();
                } else if !ahead.step() {
                    std::hint::spin_loop();
                }
            }
        }
    }

    /// The main loop of helper `index`.
    fn help(&self, index: usize) {
        let me = &self.helpers[index].0;
        let _ = me.thread.set(std::thread::current());
        let (share, mut last, mut patience) = (index + 1, Call::NONE, SPIN);
        let mut ahead = Ahead::after(0);
        // A guest replaces this helper.
        let resting = || index < self.guests.load(Ordering::Relaxed);
        loop {
            let fresh = |call: Call| call.number() != last && share < call.shares();
            self.coming.0.update(share, &mut ahead);
            let seen = match resting() {
                true => None,
                false => self.watch(&fresh, patience, self.looks, &resting, &mut ahead),
            };
            if let Some(call) = seen {
                self.work(call, share);
                last = call.number();
                patience = (2 * patience).min(self.longest);
                continue;
            }
            patience = SPIN;
            me.parked.store(true, Ordering::SeqCst);
            let call = Call::from_word(self.board.0.call.load(Ordering::SeqCst));
            if resting() || !fresh(call) {
                std::thread::park();
                self.wake();
            }
            me.parked.store(false, Ordering::SeqCst);
        }
    }

    /// The calling thread helps until `done` returns true, or until no job has come for a while. In
    /// a pool of one thread, the thread only spins, since waking it takes long.
    pub fn lend(&self, done: &dyn Fn() -> bool) {
        if self.helpers.is_empty() {
            self.watch(&|_| false, self.longest, LOOKS, done, &mut Ahead::after(0));
            return;
        }
        // Begin with the share of the helper that rests while this thread helps.
        let home = 1 + self.guests.fetch_add(1, Ordering::Relaxed) % self.helpers.len();
        let (mut last, mut ahead) = (Call::NONE, Ahead::after(self.coming.0.number()));
        loop {
            self.coming.0.update(home, &mut ahead);
            let fresh = |call: Call| call.number() != last;
            let Some(call) = self.watch(&fresh, LENT, LOOKS, done, &mut ahead) else { break };
            self.work(call, home % call.shares());
            last = call.number();
        }
        self.guests.fetch_sub(1, Ordering::Relaxed);
    }

    /// Waits for a job that is `fresh`, and meanwhile prefetches the memory of `ahead`. Returns
    /// `None` if `done` returns true first or `patience` runs out.
    fn watch(
        &self,
        fresh: &dyn Fn(Call) -> bool,
        patience: Duration,
        looks: u32,
        done: &dyn Fn() -> bool,
        ahead: &mut Ahead,
    ) -> Option<Call> {
        let start = Instant::now();
        while start.elapsed() < patience {
            for _ in 0..looks {
                let call = Call::from_word(self.board.0.call.load(Ordering::Acquire));
                if fresh(call) {
                    return Some(call);
                }
                if !ahead.step() {
                    std::hint::spin_loop();
                }
            }
            if done() {
                return None;
            }
            // Another thread, perhaps the caller, may need this core.
            std::thread::yield_now();
        }
        None
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}
