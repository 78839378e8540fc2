//! Fork-join over index ranges: the calling thread and a few helpers share one job.
//!
//! The caller publishes a job by one store. Each thread has a share of the items, the same one
//! whenever a job has the same size. It takes parts of its share first, at no cost to the others,
//! and then parts of the shares that other threads have not finished. So a helper that the system
//! has not scheduled never holds a job up: the caller waits only for helpers that run a part. The
//! module `shares` tells why a helper never runs a part of a job that is over.
//!
//! A second caller finds the pool taken and does its work alone: no queue, hence no deadlock.
//! Helpers watch for the next job for a while, and prefetch what it will read, and then park; they
//! hold nothing, so the process may exit at any time.
use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::simd::fence;

// The path is relative to this folder, also where a test includes this file by its path.
#[path = "pool/coming.rs"]
pub mod coming;
#[path = "pool/shares.rs"]
mod shares;
#[path = "pool/worth.rs"]
mod worth;
use coming::{Ahead, Coming};
use shares::{AbortOnUnwind, Body, Call, Job, Line, MAX_UNITS, Share};
pub use worth::{Choice, Worth};

/// Work, in tenths of a nanosecond of one core, below which a job is not worth sharing with a
/// helper that is still watching, or not worth waking a parked one for. Sharing with one that
/// watches takes 0.4 µs (Zen 5) or 1.3 µs (a Xeon), and at times more ([`Worth`]).
const SHARED_WORK: usize = 25_000;
const WAKING_WORK: usize = 400_000;
/// Work for each thread that takes part, for each helper that is woken, and for each unit.
const WORK_OF_THREAD: usize = 12_000;
const WORK_OF_WOKEN: usize = 100_000;
const WORK_OF_UNIT: usize = 5_000;
/// Threads from which shares have up to [`MAX_UNITS`] units instead of `FEW_UNITS`, since one of
/// many is more often a slow one. With two threads finer units cost up to 6 % (Zen 5, a Xeon).
const MANY: usize = 4;
const FEW_UNITS: usize = 8;
/// How long a helper watches for the next job before it parks, at first and while jobs keep
/// coming, and how long a guest watches before it leaves.
const SPIN: Duration = Duration::from_micros(30);
const LONG_SPIN: Duration = Duration::from_millis(1);
const LENT: Duration = Duration::from_micros(100);
/// How often a thread looks for a job before it lets another thread have the core, and a helper
/// where there are cores for all.
const LOOKS: u32 = 32;
const MORE_LOOKS: u32 = 128;
/// Helpers that the caller, and each helper that wakes, wakes at once.
const WOKEN: usize = 3;
/// Ranges for each thread in the count that [`Pool::ranges`] returns.
const RANGES_PER_THREAD: usize = 4;

/// The most threads of a pool, more than any machine has cores.
pub const MAX_THREADS: usize = 1024;

static CURRENT: OnceLock<&Pool> = OnceLock::new();

/// The line that helpers watch. The caller writes all of it in one go.
struct Board {
    call: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    /// Helpers from this number on are not woken for the job.
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
    /// Threads that help while they wait for a result; this many helpers may stay parked.
    pub guests: AtomicUsize,
    /// How long helpers watch at most.
    longest: Duration,
    /// How often a helper looks for a job before it lets another thread have the core.
    looks: u32,
}

// SAFETY: the holder of `taken` writes `job`, after the last job is done; others read it between a
// `take` and its `leave`, while no job is done. A reader acquires a store that follows the write,
// and the caller acquires the release by `leave`, which follows the reads, before it writes again.
unsafe impl Sync for Pool {}
// SAFETY: the body's pointer is followed only while the caller keeps it alive.
unsafe impl Send for Pool {}

impl Pool {
    /// A pool of `threads` in all, the caller included. It lives as long as the process. Threads
    /// beyond the cores would only take turns with the others, so they never take part.
    pub fn leak(threads: usize) -> &'static Pool {
        Self::leak_on(threads, cores())
    }

    /// [`leak`](Self::leak) for a machine with this many cores.
    pub fn leak_on(threads: usize, available: usize) -> &'static Pool {
        let threads = threads.clamp(1, MAX_THREADS);
        let team = threads.min(available).max(1);
        let helper = |_| Line(Helper { parked: AtomicBool::new(false), thread: OnceLock::new() });
        // With more threads than cores, a thread that watches may keep one from its work.
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
            // If the system refuses a thread, there is merely one helper fewer.
            let _ = std::thread::Builder::new()
                .name(format!("mlx-primitives-{index}"))
                .spawn(move || pool.help(index));
        }
        pool
    }

    /// The process's pool, with the number of threads that [`start`](Self::start) was given, or
    /// `MLX_PRIMITIVES_THREADS` (1 to [`MAX_THREADS`]), or one for each core.
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

    /// The number of ranges that a job with this much work is split into.
    pub fn ranges(&self, work: usize) -> usize {
        match self.team(work) {
            1 => 1,
            threads => threads * RANGES_PER_THREAD,
        }
    }

    /// The memory that will probably be read after the next job.
    pub fn coming(&self) -> &Coming {
        &self.coming.0
    }

    /// How many threads are worth a job with this much work.
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

    /// Runs `body` over disjoint ranges that cover `0..items`, where an item takes about `work`
    /// tenths of a nanosecond. Small jobs, and jobs that find the pool taken, run on the caller. So
    /// do short ones while that is faster than sharing them ([`Worth`]).
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
        // SeqCst here and where a helper looks again before it parks, so that one sees the other.
        board.call.store(call.word(), Ordering::SeqCst);
        call
    }

    /// Wakes a few parked helpers, and each of them wakes a few more.
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

    /// Takes parts of each share, share `home` first, until none is left.
    fn work(&self, call: Call, home: usize) {
        for at in (home..call.shares()).chain(0..home) {
            let share = &self.shares[at].0;
            let mut taken = share.take(call, at == home, false);
            if taken.is_none() {
                continue;
            }
            let guard = AbortOnUnwind;
            // SAFETY: a unit is taken, so the job is not done: it is set and stays so.
            let job = unsafe { *self.board.0.job.get() };
            while let (Some(job), Some(units)) = (job, taken) {
                let range = job.start(call, at, units.start)..job.start(call, at, units.end);
                if !range.is_empty() {
                    // SAFETY: as above, and the caller keeps the body until the job is done.
                    unsafe { (*job.body)(range) };
                }
                taken = share.take(call, at == home, true);
            }
            // Streaming stores become visible to the waiting caller.
            fence();
            std::mem::forget(guard);
            share.leave();
        }
    }

    /// Waits until the job is done, where the caller has found all units taken.
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
        // A guest takes this helper's place.
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

    /// Helps until `done` returns true, or until no job has come for a while. A pool of one thread
    /// gets no help, but that thread would take long to wake this one.
    pub fn lend(&self, done: &dyn Fn() -> bool) {
        if self.helpers.is_empty() {
            self.watch(&|_| false, self.longest, LOOKS, done, &mut Ahead::after(0));
            return;
        }
        // Begins with the share of the helper that rests meanwhile.
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

    /// Waits for a job that is `fresh`, and prefetches what is `ahead`. Returns `None` if `done`
    /// returns true first or `patience` runs out.
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
            // Another thread may need this core, the caller's own among them.
            std::thread::yield_now();
        }
        None
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}
