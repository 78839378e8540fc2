//! Watches how long a joined rank waits for MLX, since MLX's waits have no time limit: [`overdue`]
//! finds a wait beyond its limit. After a failed evaluation, this rank must not start another one:
//! a collective on a lost connection would never return.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mlx_primitives::collectives::{WaitObserver, observe_waits};
use mlx_primitives::{Error, Result};

/// Whether this process has joined a group of more than one rank.
static WATCHED: AtomicBool = AtomicBool::new(false);
static STATE: Mutex<State> =
    Mutex::new(State { last: 0, waits: BTreeMap::new(), limit: None, broken: false });

struct State {
    last: u64,
    waits: BTreeMap<u64, Wait>,
    /// The longest time that an evaluation may wait.
    limit: Option<Duration>,
    broken: bool,
}

struct Wait {
    start: Instant,
    limit: Option<Duration>,
    name: &'static str,
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers an evaluation of this thread and returns its number, or 0 if no ranks are joined.
///
/// # Errors
///
/// Returns an error if the group is broken.
fn begin_wait() -> Result<u64> {
    if !WATCHED.load(Ordering::Acquire) {
        return Ok(0);
    }
    let mut state = state();
    if state.broken {
        return Err(broken("eval"));
    }
    let limit = state.limit;
    Ok(state.begin("an evaluation", limit))
}

/// Ends the wait that [`begin_wait`] registered. A failed wait breaks the group.
fn end_wait(id: u64, failed: bool) {
    if id != 0 {
        let mut state = state();
        state.waits.remove(&id);
        state.broken |= failed;
    }
}

impl State {
    fn begin(&mut self, name: &'static str, limit: Option<Duration>) -> u64 {
        self.last += 1;
        self.waits.insert(self.last, Wait { start: Instant::now(), limit, name });
        self.last
    }
}

/// The error of all operations after a failed evaluation.
pub(super) fn broken(op: &str) -> Error {
    Error::distributed(op, "an earlier evaluation failed, so the ranks are no longer in step")
}

pub(super) fn is_broken() -> bool {
    WATCHED.load(Ordering::Acquire) && state().broken
}

/// Starts to register evaluations, which may take at most `limit`.
pub(super) fn start(limit: Duration) {
    observe_waits(WaitObserver { begin: begin_wait, end: end_wait });
    state().limit = Some(limit);
    WATCHED.store(true, Ordering::Release);
}

pub(super) fn stop() {
    WATCHED.store(false, Ordering::Release);
}

/// Runs a function that waits for other ranks, for at most `limit`.
pub(super) fn waiting<R>(name: &'static str, limit: Duration, f: impl FnOnce() -> R) -> R {
    let id = state().begin(name, Some(limit));
    let result = f();
    end_wait(id, false);
    result
}

/// Extends the limits of all waits by the time for which this process was suspended.
pub(super) fn forgive(stopped: Duration) {
    if !stopped.is_zero() {
        state().waits.values_mut().for_each(|wait| wait.start += stopped);
    }
}

/// Describes a wait that has taken longer than its limit, if there is one.
pub(super) fn overdue() -> Option<String> {
    state().waits.values().find_map(|wait| {
        let limit = wait.limit.filter(|limit| wait.start.elapsed() > *limit)?.as_secs_f64();
        Some(format!("{} has waited for {limit} s for the other ranks", wait.name))
    })
}
