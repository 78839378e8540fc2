//! Fork-join over index ranges: the calling thread and a few helpers share one job.
//!
//! A job is cut into chunks, a share of them for each thread, counted in a cache line of its own; who
//! has done his share takes chunks of the others'. A helper joins a job only while it is open, and the
//! caller waits for those that joined, so a helper the system has not scheduled never holds a job up.
//! A second caller finds the pool taken and does its work alone: no queue, hence no deadlock. Helpers
//! watch for a while after a job and then park; they hold nothing, so the process may exit at any time.
//!
//! There are never more threads at work than the pool has: one that waits for a result helps as a
//! guest in a helper's stead, and while it prepares the next evaluation that helper sleeps on.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// Work, in tenths of a nanosecond of one core, below which a job is not worth sharing with a
/// helper that is watching, and not worth waking a parked one for: that takes the caller up to 10 µs.
const SHARED_WORK: usize = 100_000;
const WAKING_WORK: usize = 1_000_000;
/// How long a helper watches for the next job before it parks, and a guest before it leaves.
const SPIN: Duration = Duration::from_micros(100);
const LENT: Duration = Duration::from_micros(100);
/// How long a thread that got its result is taken to keep a core busy.
const AWAY: Duration = Duration::from_millis(10);
/// Chunks handed out per thread: enough to even out a disturbed core.
const CHUNKS_PER_THREAD: usize = 4;
/// Threads that may be guests at a time.
const GUESTS: usize = 4;

/// More than any machine has cores.
pub const MAX_THREADS: usize = 1024;

static CURRENT: OnceLock<&Pool> = OnceLock::new();

type Body<'a> = dyn Fn(Range<usize>) + Sync + 'a;

/// What the helpers see of the caller's job.
#[derive(Clone, Copy)]
struct Job {
    body: *const Body<'static>,
    items: usize,
    chunks: usize,
    /// Whether parked helpers are worth waking.
    wakes: bool,
}

impl Job {
    fn chunk(&self, index: usize) -> Range<usize> {
        let (each, longer) = (self.items / self.chunks, self.items % self.chunks);
        let start = |index: usize| index * each + index.min(longer);
        start(index)..start(index + 1)
    }
}

/// Alone in its cache lines: two, because they are fetched in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Apart<T>(T);

#[derive(Default)]
struct Helper {
    parked: Apart<AtomicBool>,
    thread: OnceLock<Thread>,
}

pub struct Pool {
    taken: Apart<AtomicBool>,
    /// Twice the number of the last job, and one more while it is open.
    state: Apart<AtomicU64>,
    job: UnsafeCell<Option<Job>>,
    /// For each thread the number of a job, then in the low byte how many chunks of its share are taken.
    shares: Box<[Apart<AtomicU64>]>,
    /// For each helper and then each guest the number of the job it is inside, or 0.
    seats: Box<[Apart<AtomicU64>]>,
    helpers: Box<[Helper]>,
    /// Helpers and guests that would see a job at once.
    awake: Apart<AtomicUsize>,
    /// A bit for each guest: so many helpers may sleep on.
    guests: AtomicUsize,
    /// Nanoseconds after `start` until which the thread `gone` is taken to keep a core busy.
    busy_until: AtomicU64,
    gone: AtomicUsize,
    start: Instant,
    /// Cores beyond those the threads need.
    spare: bool,
}

// SAFETY: `job` is written only by the holder of `taken` while the job is closed and nobody is
// inside, and read only by helpers inside an open job; `state` and `seats` order the two.
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

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// A number that no other living thread has.
fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

fn lines<T: Default>(count: usize) -> Box<[T]> {
    std::iter::repeat_with(T::default).take(count).collect()
}

impl Pool {
    /// A pool of `threads` in all, the caller included. It lives as long as the process.
    pub fn leak(threads: usize) -> &'static Pool {
        let threads = threads.max(1);
        let pool: &'static Pool = Box::leak(Box::new(Pool {
            taken: Apart::default(),
            state: Apart::default(),
            job: UnsafeCell::new(None),
            shares: lines(threads),
            seats: lines(threads - 1 + GUESTS),
            helpers: lines(threads - 1),
            awake: Apart::default(),
            guests: AtomicUsize::new(0),
            busy_until: AtomicU64::new(0),
            gone: AtomicUsize::new(0),
            start: Instant::now(),
            spare: cores() > threads,
        }));
        for index in 0..pool.helpers.len() {
            // A thread the system refuses is one helper fewer, nothing worse.
            let _ = std::thread::Builder::new()
                .name(format!("mlx-primitives-{index}"))
                .spawn(move || pool.help(index));
        }
        pool
    }

    /// The process's pool: as many threads as [`start`](Self::start) was told, or
    /// `MLX_PRIMITIVES_THREADS` (at least 1), or one for each core.
    pub fn current() -> &'static Pool {
        CURRENT.get_or_init(|| {
            let wanted = std::env::var("MLX_PRIMITIVES_THREADS").ok();
            let wanted = wanted.and_then(|text| text.trim().parse::<usize>().ok());
            let threads = wanted.filter(|&threads| threads >= 1).unwrap_or_else(cores);
            Pool::leak(threads.min(MAX_THREADS))
        })
    }

    /// Starts the process's pool with so many threads, unless it has been started.
    pub fn start(threads: usize) -> &'static Pool {
        CURRENT.get_or_init(|| Pool::leak(threads))
    }

    pub fn threads(&self) -> usize {
        self.shares.len()
    }

    /// How many ranges a job of this much work is worth splitting into.
    pub fn ranges(&self, work: usize) -> usize {
        let watched = || self.awake.0.load(Ordering::Relaxed) > 0;
        let shared = work >= SHARED_WORK
            && !self.helpers.is_empty()
            && (watched() || work >= WAKING_WORK && self.wanted() > 0);
        if shared { self.threads() * CHUNKS_PER_THREAD } else { 1 }
    }

    /// Runs `body` over disjoint ranges that cover `0..items`, an item being about
    /// `work` tenths of a nanosecond. Small jobs, and jobs that find the pool taken, run in place.
    pub fn for_each(&self, items: usize, work: usize, body: &Body) {
        if items == 0 {
            return;
        }
        if self.gone.load(Ordering::Relaxed) == this_thread() {
            // That core is this one.
            self.busy_until.store(0, Ordering::Relaxed);
            self.gone.store(0, Ordering::Relaxed);
        }
        let work = items.saturating_mul(work);
        let chunks = self.ranges(work).min(items);
        if chunks == 1 || self.taken.0.swap(true, Ordering::Acquire) {
            return body(0..items);
        }
        let guard = AbortOnUnwind;
        // SAFETY: only the lifetime changes; `close` returns after the last helper has left.
        let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        let job = Job { body, items, chunks, wakes: work >= WAKING_WORK };
        let number = self.open(job);
        if job.wakes {
            self.wake(0..1);
        }
        self.work(job, number, 0);
        self.close(number);
        std::mem::forget(guard);
        self.taken.0.store(false, Ordering::Release);
    }

    fn open(&self, job: Job) -> u64 {
        // SAFETY: we hold `taken` and the last job is closed and empty.
        unsafe { *self.job.get() = Some(job) };
        let number = self.state.0.load(Ordering::Relaxed) / 2 + 1;
        // SeqCst here and where a helper parks: one of the two sees the other.
        self.state.0.store(2 * number + 1, Ordering::SeqCst);
        number
    }

    /// Wakes those of the helpers that are parked and wanted. Each that comes wakes two more.
    fn wake(&self, helpers: Range<usize>) {
        let end = helpers.end.min(self.wanted());
        for helper in self.helpers.iter().take(end).skip(helpers.start) {
            if helper.parked.0.load(Ordering::SeqCst)
                && helper.parked.0.swap(false, Ordering::SeqCst)
                && let Some(thread) = helper.thread.get()
            {
                thread.unpark();
            }
        }
    }

    /// How many helpers, the first ones, have a core to run on.
    fn wanted(&self) -> usize {
        let guests = self.guests.load(Ordering::Relaxed).count_ones() as usize;
        let busy = !self.spare && {
            let until = self.busy_until.load(Ordering::Relaxed);
            until > 0 && self.now() < until
        };
        self.helpers.len().saturating_sub(guests.max(busy.into()))
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Takes chunks until none is left, first those of one share.
    fn work(&self, job: Job, number: u64, first: usize) {
        let threads = self.threads();
        for share in (first..threads).chain(0..first) {
            let (start, end) = (job.chunks * share / threads, job.chunks * (share + 1) / threads);
            while let Some(taken) = self.take(share, number, end - start) {
                // SAFETY: the job is open or has us inside, so the caller still holds the body.
                unsafe { (*job.body)(job.chunk(start + taken)) };
            }
        }
    }

    /// The next chunk of a share of job `number`, if there is one. A count of an older job is none.
    fn take(&self, share: usize, number: u64, chunks: usize) -> Option<usize> {
        let counter = &self.shares[share].0;
        let mut seen = counter.load(Ordering::Relaxed);
        loop {
            let taken = if seen >> 8 == number { seen & 0xff } else { 0 };
            if taken as usize >= chunks {
                return None;
            }
            let next = number << 8 | (taken + 1);
            match counter.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(taken as usize),
                Err(now) => seen = now,
            }
        }
    }

    /// Lets no further helper in and waits for those inside.
    fn close(&self, number: u64) {
        // SeqCst here and in `join`: a helper sees this, or we see it seated.
        self.state.0.store(2 * number, Ordering::SeqCst);
        for seat in &self.seats {
            let mut waited = 0u32;
            while seat.0.load(Ordering::SeqCst) == number {
                waited += 1;
                if waited < 10_000 {
                    std::hint::spin_loop();
                } else {
                    std::thread::yield_now();
                }
            }
        }
    }

    /// A helper's life.
    fn help(&self, index: usize) {
        let me = &self.helpers[index];
        let _ = me.thread.set(std::thread::current());
        let mut last = 0;
        loop {
            self.awake.0.fetch_add(1, Ordering::Relaxed);
            while let Some(number) = self.watch(last, SPIN, &|| index >= self.wanted()) {
                self.join(number, index, index + 1, 2 * index + 1..2 * index + 3);
                last = number;
            }
            self.awake.0.fetch_sub(1, Ordering::Relaxed);
            me.parked.0.store(true, Ordering::SeqCst);
            let fresh = is_fresh(self.state.0.load(Ordering::SeqCst), last);
            if !fresh || index >= self.wanted() {
                std::thread::park();
            }
            me.parked.0.store(false, Ordering::SeqCst);
        }
    }

    /// Helps until `done`, or until no job has come for a while.
    pub fn lend(&self, done: &dyn Fn() -> bool) {
        if self.helpers.is_empty() {
            return;
        }
        let sits = |guest: &usize| {
            let seat = 1 << guest;
            self.guests.fetch_or(seat, Ordering::Relaxed) & seat == 0
        };
        let Some(guest) = (0..GUESTS).find(sits) else {
            return;
        };
        self.awake.0.fetch_add(1, Ordering::Relaxed);
        let mut last = 0;
        while let Some(number) = self.watch(last, LENT, done) {
            // The last share is that of the helper which sleeps on.
            self.join(number, self.helpers.len() + guest, self.threads() - 1, 0..0);
            last = number;
        }
        self.awake.0.fetch_sub(1, Ordering::Relaxed);
        self.guests.fetch_and(!(1 << guest), Ordering::Relaxed);
    }

    /// The calling thread has the result that it waited for, and will keep a core busy.
    pub fn part(&self) {
        if !self.helpers.is_empty() {
            let until = self.now() + AWAY.as_nanos() as u64;
            self.busy_until.store(until, Ordering::Relaxed);
            self.gone.store(this_thread(), Ordering::Relaxed);
        }
    }

    /// Works on job `number` if it is still open, from a share on, after waking some helpers.
    fn join(&self, number: u64, seat: usize, share: usize, wakes: Range<usize>) {
        let seat = &self.seats[seat].0;
        seat.store(number, Ordering::SeqCst);
        if self.state.0.load(Ordering::SeqCst) == 2 * number + 1 {
            let guard = AbortOnUnwind;
            // SAFETY: we are inside an open job, so it is set and stays so until we leave.
            if let Some(job) = unsafe { *self.job.get() } {
                if job.wakes {
                    self.wake(wakes);
                }
                self.work(job, number, share);
            }
            std::mem::forget(guard);
        }
        seat.store(0, Ordering::Release);
    }

    /// The number of an open job other than `last`; none if `done` comes first or nothing within
    /// `patience`.
    fn watch(&self, last: u64, patience: Duration, done: &dyn Fn() -> bool) -> Option<u64> {
        let start = Instant::now();
        while start.elapsed() < patience {
            for _ in 0..32 {
                let state = self.state.0.load(Ordering::Acquire);
                if is_fresh(state, last) {
                    return Some(state / 2);
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
    state % 2 == 1 && state / 2 != last
}
