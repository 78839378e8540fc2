//! `cargo bench --bench regions [-- THREADS...]`: measures the cost of sharing a job among threads.
//!
//! Thread pools with more threads than this machine has cores are timed too, marked
//! "oversubscribed". Threads beyond the number of cores never take part in a job, so these times
//! should equal the times with one thread per core.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

use mlx_primitives_kernels::pool::{MAX_THREADS, Pool};

const ROUNDS: usize = 1000;
const THREADS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The number of items in a job for each thread.
const ITEMS: usize = 8;
/// After the pause `BRIEF`, the pool's helper threads still spin and watch for work. After the
/// pause `LONG`, they sleep.
const BRIEF: Duration = Duration::from_micros(10);
const LONG: Duration = Duration::from_micros(1500);
/// The work for one token of a small model. There are `LAYERS` layers, and each layer has the same
/// jobs. `JOBS` contains the microseconds that each job would take one thread. During the pauses
/// `GAP` (between two jobs) and `BETWEEN` (between two tokens), only the calling thread works.
const LAYERS: usize = 20;
const JOBS: [u64; 5] = [120, 8, 60, 20, 200];
const GAP: Duration = Duration::from_micros(2);
const BETWEEN: Duration = Duration::from_micros(300);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` runs benches too, but without cargo's `--bench` flag.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    let wanted: Vec<usize> = arguments.iter().filter_map(|text| text.parse().ok()).collect();
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    println!("{cores} cores; medians of {ROUNDS}, then the 99th percentile, in µs a region");
    let heads = ["empty", "empty, asleep", "5 µs", "50 µs", "200 µs", "200 µs, asleep", "token"];
    println!("{:>7}{}", "threads", heads.map(|head| format!(" {head:>16}")).concat());
    for threads in if wanted.is_empty() { THREADS.to_vec() } else { wanted } {
        if !(1..=MAX_THREADS).contains(&threads) {
            return eprintln!("expected 1 to {MAX_THREADS} threads, got {threads}");
        }
        // This pool is separate from the kernels' pool. Its threads sleep when they have no work,
        // and end with the process.
        let team = Pool::leak(threads);
        let cells = [
            region(team, 0, BRIEF),
            region(team, 0, LONG),
            region(team, 5, BRIEF),
            region(team, 50, BRIEF),
            region(team, 200, BRIEF),
            region(team, 200, LONG),
            token(team),
        ];
        let cells: String = cells.map(|cell| format!(" {cell:>16}")).concat();
        println!("{threads:>7}{cells}{}", if threads > cores { "  oversubscribed" } else { "" });
    }
}

/// Times a job after a `pause`. The job would take one thread `work` microseconds.
fn region(team: &Pool, work: u64, pause: Duration) -> String {
    median(ROUNDS, || {
        spin(pause);
        // The declared cost is high enough to wake sleeping helpers for any job.
        share(team, work, 1_000_000)
    })
}

/// Times all jobs of a token. Each job declares its true cost to the pool.
fn token(team: &Pool) -> String {
    median(ROUNDS / 10, || {
        spin(BETWEEN);
        let start = Instant::now();
        for _ in 0..LAYERS {
            for work in JOBS {
                spin(GAP);
                share(team, work, work as usize * 10_000 / (ITEMS * team.threads()));
            }
        }
        start.elapsed()
    })
}

/// Splits a job among the team's threads and times it. The job would take one thread `work`
/// microseconds.
fn share(team: &Pool, work: u64, declared: usize) -> Duration {
    let items = ITEMS * team.threads();
    let start = Instant::now();
    team.for_each(items, declared, &|range| {
        spin(Duration::from_nanos(work * 1000 * range.len() as u64 / items as u64));
    });
    start.elapsed()
}

/// Returns the median and the 99th percentile as text.
fn median(rounds: usize, mut time: impl FnMut() -> Duration) -> String {
    let mut times: Vec<_> = (0..rounds).map(|_| time()).collect();
    times.sort();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    format!("{:.2} {:.1}", micros(times[rounds / 2]), micros(times[rounds * 99 / 100]))
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        spin_loop();
    }
}
