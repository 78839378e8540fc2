//! The process that runs the cases, and reports the beginning and the end of each on its standard
//! output.

use std::cell::RefCell;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use super::Args;
use super::case::{Case, Fuzzer, Run, generator};
use super::memory::Before;

/// A line of the child's output.
#[derive(Debug)]
pub enum Said {
    /// The fuzzer is prepared.
    Ready,
    Begins(u64),
    /// A description of the case.
    Notes(String),
    Ends {
        accepted: bool,
        took: Duration,
    },
    /// The library broke a promise.
    Fails(String),
    /// All cases have been run.
    Done,
}

/// Marks the lines, because other output of the program may be between them.
const MARK: &str = "fuzz>";

impl Said {
    fn say(&self) {
        let text = match self {
            Self::Ready => "ready".to_owned(),
            Self::Begins(case) => format!("begins {case}"),
            Self::Notes(what) => format!("notes {what}"),
            Self::Ends { accepted, took } => format!("ends {accepted} {}", took.as_micros()),
            Self::Fails(what) => format!("fails {}", what.escape_debug()),
            Self::Done => "done".to_owned(),
        };
        let mut out = std::io::stdout().lock();
        // Nobody is left to inform if the parent does not listen.
        let _ = writeln!(out, "\n{MARK} {text}").and_then(|()| out.flush());
    }
}

impl FromStr for Said {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let line = line.strip_prefix(MARK).ok_or(())?.trim();
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        Ok(match what {
            "ready" => Self::Ready,
            "begins" => Self::Begins(rest.parse().map_err(drop)?),
            "notes" => Self::Notes(rest.to_owned()),
            "ends" => {
                let (accepted, took) = rest.split_once(' ').ok_or(())?;
                let took = Duration::from_micros(took.parse().map_err(drop)?);
                Self::Ends { accepted: accepted.parse().map_err(drop)?, took }
            }
            "fails" => Self::Fails(rest.to_owned()),
            "done" => Self::Done,
            _ => return Err(()),
        })
    }
}

/// Reports what a case is about, for the message of its failure.
pub fn note(what: &str) {
    Said::Notes(what.to_owned()).say();
}

thread_local! {
    /// The message and the location of this thread's last panic.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Takes the message of the last panic that was caught on this thread.
pub fn last_panic() -> String {
    PANIC.take()
}

/// Runs the cases on a thread with the default stack, which is smaller than the main thread's.
pub fn run(fuzzer: &'static Fuzzer, args: &Args, folder: &Path) -> ExitCode {
    std::panic::set_hook(Box::new(|info| PANIC.set(info.to_string())));
    let (args, folder) = (args.clone(), folder.to_owned());
    let cases = thread::spawn(move || match (fuzzer.prepare)(&folder) {
        Ok(mut run) => {
            Said::Ready.say();
            let (first, end) = args.range();
            (first..end).for_each(|case| run_case(fuzzer, &mut run, args.seed, case));
        }
        Err(error) => Said::Fails(format!("preparing: {error}")).say(),
    });
    match cases.join() {
        Ok(()) => {
            Said::Done.say();
            ExitCode::SUCCESS
        }
        Err(_) => ExitCode::FAILURE,
    }
}

fn run_case(fuzzer: &Fuzzer, run: &mut Run, seed: u64, number: u64) {
    Said::Begins(number).say();
    let mut rng = generator(fuzzer.name, seed, number);
    let before = Before::now();
    let started = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut rng)));
    let took = started.elapsed();
    match outcome {
        Ok(Case { input, accepted }) => {
            let (taken, most) = (before.taken(), 2 * input + fuzzer.allowance);
            match taken <= most {
                true => Said::Ends { accepted, took },
                false => Said::Fails(format!(
                    "took {taken} bytes of memory for an input of {input}, more than {most}"
                )),
            }
        }
        Err(_) => Said::Fails(last_panic()),
    }
    .say();
}
