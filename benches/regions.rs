//! `cargo bench --bench regions [-- THREADS...]`: the cost of sharing a job among threads.
//!
//! Teams with more threads than this machine has cores are timed too, marked "oversubscribed".
//! Their threads take turns on the cores, so these times bound the cost from above and show how
//! well a team copes with other load.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

use mlx_primitives_kernels::pool::{MAX_THREADS, Pool};

const ROUNDS: usize = 1000;
const THREADS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Chunks of a job, for each thread.
const ITEMS: usize = 8;
/// A pause after which helpers still watch for work, and one after which they sleep.
const BRIEF: Duration = Duration::from_micros(10);
const LONG: Duration = Duration::from_micros(400);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` runs benches too, but without cargo's `--bench` flag.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    let wanted: Vec<usize> = arguments.iter().filter_map(|text| text.parse().ok()).collect();
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    println!("{cores} cores; medians of {ROUNDS}, then the 99th percentile, in µs a region");
    println!(
        "{:>7} {:>16} {:>16} {:>16} {:>16}",
        "threads", "empty, watched", "empty, asleep", "50 µs, watched", "200 µs, asleep"
    );
    for threads in if wanted.is_empty() { THREADS.to_vec() } else { wanted } {
        if !(1..=MAX_THREADS).contains(&threads) {
            return eprintln!("expected 1 to {MAX_THREADS} threads, got {threads}");
        }
        // Separate from the kernels' pool. Its threads sleep when they are done, and end with the
        // process.
        let team = Pool::leak(threads);
        let cells = [
            region(team, Duration::ZERO, BRIEF),
            region(team, Duration::ZERO, LONG),
            region(team, Duration::from_micros(50), BRIEF),
            region(team, Duration::from_micros(200), LONG),
        ];
        let cells: String = cells.map(|cell| format!(" {cell:>16}")).concat();
        println!("{threads:>7}{cells}{}", if threads > cores { "  oversubscribed" } else { "" });
    }
}

/// Times a job that takes one thread `work`, after a `pause`: the median and the 99th percentile.
fn region(team: &Pool, work: Duration, pause: Duration) -> String {
    let items = ITEMS * team.threads();
    let item = work / items as u32;
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|_| {
            spin(pause);
            let start = Instant::now();
            // The declared cost makes it worth waking sleepers, whatever the job is.
            team.for_each(items, 1_000_000, &|range| spin(item * range.len() as u32));
            start.elapsed()
        })
        .collect();
    times.sort();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    format!("{:.2} {:.1}", micros(times[ROUNDS / 2]), micros(times[ROUNDS * 99 / 100]))
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        spin_loop();
    }
}
