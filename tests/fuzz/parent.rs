//! The process that watches a fuzzer's child: whether each case ends in time, and whether the child
//! lives.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::case::Fuzzer;
use super::child::Said;
use super::{Args, CASES};

/// The number of failing cases of a fuzzer after which the rest is skipped.
const MOST_FAILURES: usize = 10;
/// How long a child may take to prepare the state that its cases share.
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

/// Runs the cases, with a new child after each case that ended one.
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
    // A fuzzer whose cases are all accepted, or all refused, tests only half of the library's code.
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

/// Runs a child from the case `first` on, and returns the case that the next child begins with.
fn watch(
    fuzzer: &Fuzzer,
    args: &Args,
    first: u64,
    end: u64,
    tally: &mut Tally,
) -> anyhow::Result<u64> {
    let folder = tempfile::tempdir()?;
    let mut child = Command::new(std::env::current_exe()?)
        .args([fuzzer.name, "--exact", "--child"])
        .arg(folder.path())
        .args(["--seed", &args.seed.to_string(), "--first", &first.to_string()])
        .args(["--cases", &(end - first).to_string()])
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()?;
    let said = listen(&mut child)?;
    let limit = Duration::from_secs(args.limit);
    let (mut case, mut about, mut wait, mut done) = (first, String::new(), PREPARATION, false);
    let what = loop {
        match said.recv_timeout(wait) {
            Ok(Said::Ready) => wait = limit,
            Ok(Said::Begins(number)) => (case, about) = (number, String::new()),
            Ok(Said::Notes(what)) => about = format!("({what}) "),
            Ok(Said::Ends { took, .. }) if took > limit => {
                failed(fuzzer, args, case, &format!("{about}took {took:?}"));
                tally.failures += 1;
            }
            Ok(Said::Ends { accepted, took }) => {
                *(if accepted { &mut tally.accepted } else { &mut tally.refused }) += 1;
                tally.slowest = tally.slowest.max((took, case));
            }
            Ok(Said::Fails(what)) => {
                failed(fuzzer, args, case, &format!("{about}{what}"));
                tally.failures += 1;
                if tally.failures >= MOST_FAILURES {
                    child.kill()?;
                    child.wait()?;
                    return Ok(end);
                }
            }
            Ok(Said::Done) => done = true,
            Err(RecvTimeoutError::Timeout) => {
                child.kill()?;
                child.wait()?;
                break format!("hangs: nothing came of it in {wait:?}");
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = child.wait()?;
                if done && status.success() {
                    return Ok(end);
                }
                break format!("ended the process: {status}");
            }
        }
    };
    let when = if done { "after the last case, the process " } else { "" };
    failed(fuzzer, args, case, &format!("{about}{when}{what}"));
    tally.failures += 1;
    Ok(if wait == limit { case + 1 } else { end })
}

/// The lines that the child writes.
fn listen(child: &mut Child) -> anyhow::Result<Receiver<Said>> {
    let output = child.stdout.take().ok_or_else(|| anyhow::anyhow!("a child without output"))?;
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if let Ok(said) = String::from_utf8_lossy(&line).parse::<Said>()
                && sender.send(said).is_err()
            {
                break;
            }
        }
    });
    Ok(receiver)
}

/// Reports which case failed, and how to run it again.
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
