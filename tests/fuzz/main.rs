//! Seeded fuzzers of all inputs of the library: files, templates, arguments, graphs, and the bytes
//! that the ranks (processes) of a split model send to each other.
//!
//! `cargo test` runs 2,000 cases of each fuzzer, always the same ones. To run new ones overnight:
//!
//! ```text
//! cargo test --test fuzz -- --cases 100000 --seed 7 [NAME...]
//! ```
//!
//! Every case must end in `Ok` or `Err` within `--limit` seconds and take little memory. Each
//! fuzzer runs in a child process. If a case aborts or hangs, only this case fails, and the parent
//! prints the command that repeats it.

mod adapters;
mod arrays;
mod case;
mod chat_template;
mod child;
mod config;
mod gguf;
mod gguf_vocabulary;
mod graphs;
mod hostile_templates;
mod memory;
mod mutation;
mod ops;
mod parent;
mod prompt_cache;
#[cfg(target_os = "linux")] // elsewhere the library has no hooks for tests
mod ranks;
mod safetensors;
mod tokenizer;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use clap::Parser;

use case::Fuzzer;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// The number of cases of each fuzzer that a plain `cargo test` runs.
const CASES: u64 = 2_000;
/// The seed of those cases.
const SEED: u64 = 1;

static FUZZERS: &[Fuzzer] = &[
    safetensors::FUZZER,
    gguf::FUZZER,
    config::FUZZER,
    tokenizer::FUZZER,
    chat_template::FUZZER,
    prompt_cache::FUZZER,
    adapters::FUZZER,
    ops::FUZZER,
    graphs::FUZZER,
    #[cfg(target_os = "linux")]
    ranks::GREETINGS,
    #[cfg(target_os = "linux")]
    ranks::FRAMES,
    #[cfg(target_os = "linux")]
    ranks::PARTS,
];

/// Fuzzes the library with seeded cases.
#[derive(Parser, Clone)]
#[command(name = "fuzz")]
struct Args {
    /// Runs the fuzzers whose name contains one of these texts; all of them if there is none.
    names: Vec<String>,
    /// How many cases of each fuzzer to run.
    #[arg(long, default_value_t = CASES)]
    cases: u64,
    /// The seed of the cases: equal seeds draw equal cases.
    #[arg(long, default_value_t = SEED)]
    seed: u64,
    /// Runs only this case.
    #[arg(long)]
    case: Option<u64>,
    /// The first case to run.
    #[arg(long, default_value_t = 0, conflicts_with = "case")]
    first: u64,
    /// How many seconds a case may take. A case should take one second at most; the default leaves
    /// room for a busy machine with ten times as much work as cores.
    #[arg(long, default_value_t = 10)]
    limit: u64,
    /// Lists the fuzzers.
    #[arg(long)]
    list: bool,
    /// How many fuzzers run at the same time; by default the number of cores.
    #[arg(long)]
    test_threads: Option<usize>,
    /// Skips the fuzzers whose name contains this text.
    #[arg(long)]
    skip: Vec<String>,
    /// Matches whole names instead of parts of them.
    #[arg(long)]
    exact: bool,
    /// Runs no fuzzer, because none is marked as ignored.
    #[arg(long)]
    ignored: bool,
    /// Options of libtest that this program ignores.
    #[command(flatten)]
    _unused: Unused,
    /// The folder for a child process's files.
    #[arg(long, hide = true)]
    child: Option<PathBuf>,
}

#[derive(clap::Args, Clone)]
struct Unused {
    #[arg(long, hide = true, alias = "no-capture")]
    nocapture: bool,
    #[arg(long, hide = true)]
    include_ignored: bool,
    #[arg(long, hide = true)]
    show_output: bool,
    #[arg(short, long, hide = true)]
    quiet: bool,
    #[arg(long, hide = true)]
    color: Option<String>,
    #[arg(long, hide = true)]
    format: Option<String>,
}

impl Args {
    fn chooses(&self, fuzzer: &Fuzzer) -> bool {
        let matches = |text: &String| match self.exact {
            true => fuzzer.name == text,
            false => fuzzer.name.contains(text.as_str()),
        };
        let named = self.names.is_empty() || self.names.iter().any(matches);
        named && !self.ignored && !self.skip.iter().any(matches)
    }

    /// The number of the first case, and the number after the last case.
    fn range(&self) -> (u64, u64) {
        match self.case {
            Some(case) => (case, case + 1),
            None => (self.first, self.first.saturating_add(self.cases)),
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let chosen: Vec<&'static Fuzzer> =
        FUZZERS.iter().filter(|fuzzer| args.chooses(fuzzer)).collect();
    if args.list {
        chosen.iter().for_each(|fuzzer| println!("{}: test", fuzzer.name));
        return ExitCode::SUCCESS;
    }
    if let (Some(folder), [fuzzer]) = (&args.child, &*chosen) {
        return child::run(fuzzer, args.seed, folder);
    }
    run_all(&chosen, &args)
}

/// Runs the fuzzers, several at a time. Reports how each ended in libtest's format.
fn run_all(chosen: &[&'static Fuzzer], args: &Args) -> ExitCode {
    let started = Instant::now();
    println!("\nrunning {} fuzzers", chosen.len());
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..args.test_threads.unwrap_or(cores).clamp(1, FUZZERS.len()) {
            scope.spawn(|| {
                while let Some(fuzzer) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let tally = parent::run(fuzzer, args);
                    // While this thread holds the lock, no other thread prints between these lines.
                    let mut failed = failed.lock().unwrap();
                    println!("fuzz {tally}");
                    *failed += usize::from(!tally.passed());
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!(
        "\ntest result: {}. {} passed; {failed} failed; 0 ignored; 0 measured; {} filtered out; \
         finished in {:.2}s\n",
        if failed == 0 { "ok" } else { "FAILED" },
        chosen.len() - failed,
        FUZZERS.len() - chosen.len(),
        started.elapsed().as_secs_f64(),
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
