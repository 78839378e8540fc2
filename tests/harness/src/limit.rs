//! Time limits. If a test takes too long, the harness prints its name and the stacks of all
//! threads, and ends the process.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The environment variable with a factor for all limits, for machines that are slow or busy.
pub const PATIENCE: &str = "MLX_PRIMITIVES_TEST_PATIENCE";

struct Started {
    name: &'static str,
    at: Instant,
    limit: Duration,
}

/// The duration and the name of each test that has ended.
static TIMES: Mutex<Vec<(Duration, &str)>> = Mutex::new(Vec::new());
static RUNNING: Mutex<BTreeMap<u64, Started>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A running test.
pub struct Running(u64);

impl Running {
    pub fn start(name: &'static str, seconds: u64) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let limit = Duration::from_secs(seconds).mul_f64(patience());
        let started = Started { name, at: Instant::now(), limit };
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).insert(number, started);
        Self(number)
    }

    /// Whether no other test is running.
    pub fn is_alone(&self) -> bool {
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).len() == 1
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let ended = RUNNING.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
        if let Some(Started { name, at, .. }) = ended {
            TIMES.lock().unwrap_or_else(PoisonError::into_inner).push((at.elapsed(), name));
        }
    }
}

/// The names and times of the `count` slowest tests that have ended.
pub fn slowest(count: usize) -> String {
    let mut times = TIMES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    times.sort();
    let named = times.iter().rev().take(count);
    let texts: Vec<_> = named.map(|(time, name)| format!("{name} {time:.1?}")).collect();
    texts.join(", ")
}

fn patience() -> f64 {
    let factor = std::env::var(PATIENCE).ok().and_then(|text| text.parse().ok());
    factor.filter(|factor| *factor > 0.0).unwrap_or(1.0)
}

/// Starts a thread that checks whether running tests exceed their limits.
pub fn watch() {
    thread::Builder::new()
        .name("time limits".into())
        .spawn(|| {
            loop {
                thread::sleep(Duration::from_millis(200));
                let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
                let late: Vec<_> =
                    running.values().filter(|test| test.at.elapsed() > test.limit).collect();
                if !late.is_empty() {
                    for test in late {
                        eprintln!(
                            "\ntest {} ... FAILED: it took more than {:?}",
                            test.name, test.limit
                        );
                    }
                    show_stacks();
                    // `exit` would wait for the threads that hang.
                    std::process::abort();
                }
            }
        })
        .expect("a thread that watches the limits");
}

/// Prints every thread's stack, if gdb is installed.
fn show_stacks() {
    let process = std::process::id().to_string();
    let arguments = ["-p", &process, "--batch", "-ex", "thread apply all backtrace 40"];
    #[cfg(target_os = "linux")]
    // SAFETY: this call only lets other processes trace this process.
    unsafe {
        libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY);
    }
    let mut gdb = match Command::new("gdb").args(arguments).stdout(Stdio::inherit()).spawn() {
        Ok(gdb) => gdb,
        Err(error) => return eprintln!("The stacks are not shown, since gdb did not run: {error}"),
    };
    let start = Instant::now();
    while matches!(gdb.try_wait(), Ok(None)) && start.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(10));
    }
    let _ = gdb.kill();
}
