//! The child process, which runs cases one after the other. Its parent sends the number of each
//! case.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::thread;
use std::time::Instant;

use harness::workers;

use super::case::{Case, Fuzzer, Run, generator};
use super::memory::Before;

/// The file in a child's folder that describes its case.
pub const ABOUT: &str = "about";

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Records a description of the current case, for the message if the case fails.
pub fn note(what: &str) {
    if let Some(folder) = FOLDER.get() {
        let _ = std::fs::write(folder.join(ABOUT), what);
    }
}

thread_local! {
    /// The message and the location of this thread's last panic.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Takes the message of the last panic that was caught on this thread.
pub fn last_panic() -> String {
    PANIC.take()
}

/// Answers the number of each case. The answer is the time in microseconds and whether the input
/// was accepted, or "fails" and the reason. Cases run on a thread with the default stack size,
/// which is smaller than the main thread's.
pub fn run(fuzzer: &'static Fuzzer, seed: u64, folder: &Path) -> ExitCode {
    std::panic::set_hook(Box::new(|info| PANIC.set(info.to_string())));
    let folder = FOLDER.get_or_init(|| folder.to_owned());
    let cases = thread::spawn(move || {
        let mut run = (fuzzer.prepare)(folder);
        workers::serve(|case| match &mut run {
            Ok(run) => case.parse().map_or_else(
                |_| "0 true".to_owned(), // asks whether it is ready
                |case| run_case(fuzzer, run, seed, case),
            ),
            Err(error) => format!("fails preparing: {error}"),
        });
    });
    cases.join().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

fn run_case(fuzzer: &Fuzzer, run: &mut Run, seed: u64, number: u64) -> String {
    let mut rng = generator(fuzzer.name, seed, number);
    let before = Before::now();
    let started = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut rng)));
    let took = started.elapsed();
    let Ok(Case { input, accepted }) = outcome else {
        return format!("fails {}", last_panic().escape_debug());
    };
    let (taken, most) = (before.taken(), 2 * input + fuzzer.allowance);
    match taken <= most {
        true => format!("{} {accepted}", took.as_micros()),
        false => {
            format!("fails took {taken} bytes of memory for an input of {input}, more than {most}")
        }
    }
}
