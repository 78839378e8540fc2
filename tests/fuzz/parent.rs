//! The parent process, which watches a fuzzer's child process. It checks that each case ends in
//! time and that the child does not crash.

use std::process::Command;
use std::time::Duration;

use harness::workers::Worker;

use super::case::Fuzzer;
use super::child::ABOUT;
use super::{Args, CASES};

/// After this many failing cases of a fuzzer, the parent skips its other cases.
const MOST_FAILURES: usize = 10;
/// The time limit for a child to create the state that its cases share.
const PREPARATION: Duration = Duration::from_secs(120);

/// How a fuzzer's cases ended.
pub struct Tally {
    name: &'static str,
    accepted: u64,
    refused: u64,
    failures: usize,
    slowest: (Duration, u64),
}

impl Tally {
    pub fn passed(&self) -> bool {
        self.failures == 0
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, accepted, refused, failures, slowest: (time, case) } = self;
        let cases = accepted + refused + *failures as u64;
        let result = if self.passed() { "ok" } else { "FAILED" };
        let ms = time.as_secs_f64() * 1e3;
        write!(
            f,
            "{name} ... {result}: {cases} cases, {accepted} Ok, {refused} Err, {failures} failed, \
             slowest {ms:.1} ms (case {case})"
        )
    }
}

/// Runs the cases. If a case ends the child, the next case starts a new child.
pub fn run(fuzzer: &'static Fuzzer, args: &Args) -> Tally {
    let Fuzzer { name, .. } = *fuzzer;
    let mut tally =
        Tally { name, accepted: 0, refused: 0, failures: 0, slowest: (Duration::ZERO, 0) };
    let (mut first, end) = args.range();
    while first < end && tally.failures < MOST_FAILURES {
        match watch(fuzzer, args, first, end, &mut tally) {
            Ok(next) => first = next,
            Err(error) => {
                eprintln!("fuzz {name}: {error:#}");
                tally.failures += 1;
                break;
            }
        }
    }
    // If nearly all cases were accepted, or nearly all were refused, the fuzzer would test only
    // half of the library's code.
    let few = (end - args.range().0) / 50;
    if tally.passed()
        && end - args.range().0 >= CASES / 4
        && tally.accepted.min(tally.refused) < few
    {
        eprintln!(
            "fuzz {name}: of {} Ok and {} Err either is too rare",
            tally.accepted, tally.refused
        );
        tally.failures += 1;
    }
    tally
}

/// Runs a child, beginning with the case `first`. Returns the case with which the next child
/// begins.
fn watch(
    fuzzer: &Fuzzer,
    args: &Args,
    first: u64,
    end: u64,
    tally: &mut Tally,
) -> anyhow::Result<u64> {
    let folder = tempfile::tempdir()?;
    let mut program = Command::new(std::env::current_exe()?);
    program.args([fuzzer.name, "--exact", "--child"]).arg(folder.path());
    let mut child = Worker::start(program.args(["--seed", &args.seed.to_string()]))?;
    let mut fails = |case: u64, what: &str| {
        let about = std::fs::read_to_string(folder.path().join(ABOUT));
        let about = about.map_or_else(|_| String::new(), |about| format!("({about}) "));
        failed(fuzzer, args, case, &format!("{about}{what}"));
        tally.failures += 1;
        tally.failures >= MOST_FAILURES
    };
    let ready = child.ask("ready", PREPARATION);
    if !matches!(&ready, Ok(ready) if !ready.starts_with("fails")) {
        fails(first, &format!("{ready:?}"));
        return Ok(end);
    }
    let limit = Duration::from_secs(args.limit);
    for case in first..end {
        let answer = match child.ask(&case.to_string(), limit) {
            Ok(answer) => answer,
            Err("hang") => {
                fails(case, &format!("hangs: nothing came of it in {limit:?}"));
                return Ok(case + 1);
            }
            Err(_) => {
                fails(case, &format!("ended the process: {}", child.end()?));
                return Ok(case + 1);
            }
        };
        let (took, accepted) = answer.split_once(' ').unwrap_or_default();
        if took == "fails" {
            if fails(case, accepted) {
                return Ok(end);
            }
            continue;
        }
        let took = Duration::from_micros(took.parse()?);
        *(if accepted == "true" { &mut tally.accepted } else { &mut tally.refused }) += 1;
        tally.slowest = tally.slowest.max((took, case));
    }
    let status = child.end()?;
    if !status.success() {
        fails(end - 1, &format!("after the last case, the process ended: {status}"));
    }
    Ok(end)
}

/// Prints which case failed, and how to run it again.
fn failed(fuzzer: &Fuzzer, args: &Args, case: u64, what: &str) {
    let (name, seed) = (fuzzer.name, args.seed);
    eprintln!(
        "fuzz {name}: case {case} of seed {seed} {what}\n  \
         cargo test --test fuzz -- {name} --exact --seed {seed} --case {case}\n  \
         or, if that passes, as the cases before it matter:\n  \
         cargo test --test fuzz -- {name} --exact --seed {seed} --cases {}",
        case + 1
    );
}
