//! Runs the suite's tests in a random order, each on a thread and with a time limit. After a test,
//! MLX must be idle.

mod limit;
mod panics;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::{LazyLock, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use mlx_primitives::device::active_tasks;
use mlx_primitives::tune::{Choices, with_choices};
use mlx_primitives_check::{Check, Conformance};

use crate::support::Checked;
use crate::table::{ROWS, Rows, backends};
pub use limit::PATIENCE;

/// The default time limit of a test in seconds. It is about ten times the time of the slowest such
/// test on two idle cores.
pub const DEFAULT_SECONDS: u64 = 300;

/// The seed for the order of the tests; each run chooses a new one if it is not set.
const SEED: &str = "MLX_PRIMITIVES_TEST_SEED";

/// One in this many comparisons of the conformance table runs, beside the first of each case. Without it,
/// all run.
pub const SAMPLE: &str = "MLX_PRIMITIVES_TEST_SAMPLE";

/// The number of tests whose times are printed after all have run.
const SLOWEST: usize = 8;

/// How long MLX may take to become idle after a test.
const REST: Duration = Duration::from_secs(20);

/// A test that the attribute `#[test]` registers, or one of the conformance table.
pub struct Test {
    pub path: &'static str,
    pub seconds: u64,
    pub ignored: bool,
    /// Whether it observes the whole process, so that no other test may run.
    pub alone: bool,
    pub run: fn(&Test) -> Result<(), String>,
}

inventory::collect!(Test);

/// A test for each function of the conformance table.
static OF_TABLE: LazyLock<Vec<Test>> = LazyLock::new(|| {
    let test = |rows: &Rows| Test {
        path: format!("suite::table::{}", rows.name).leak(),
        seconds: DEFAULT_SECONDS,
        ignored: false,
        alone: false,
        run: |test| {
            let rows =
                ROWS.iter().find(|rows| test.path.ends_with(&format!("table::{}", rows.name)));
            rows.map_or(Err("no such rows".into()), |rows| (rows.each)(&hold).into_result())
        },
    };
    ROWS.iter().map(test).collect()
});

/// Runs a row on every backend of the suite, with our kernels whatever the machine's rule is; every check must have run or have a reason not to.
fn hold(row: Conformance) -> Checked {
    let sample = std::env::var(SAMPLE).ok().and_then(|text| text.parse().ok());
    let row = row.backends(&backends()?).sample(sample.unwrap_or(1));
    let report = with_choices(Rc::new(Choices::ours()), || row.run());
    report.check()?;
    let ran = |check: Check| report.outcomes().iter().any(|outcome| outcome.check == check);
    let reasons = report.not_run().join("; ");
    for check in Check::ALL {
        assert!(ran(check) || reasons.contains(&format!("{check}: ")), "{check}: {reasons}");
    }
    Ok(())
}

/// The return types of tests.
pub trait Outcome {
    fn into_result(self) -> Result<(), String>;
}

impl Outcome for () {
    fn into_result(self) -> Result<(), String> {
        Ok(())
    }
}

impl<E: std::fmt::Debug> Outcome for Result<(), E> {
    fn into_result(self) -> Result<(), String> {
        self.map_err(|error| format!("{error:?}"))
    }
}

impl Test {
    /// The path without the name of the crate.
    fn name(&self) -> &'static str {
        self.path.split_once("::").map_or(self.path, |(_, name)| name)
    }

    fn check(&'static self) -> Result<(), Failed> {
        static ALONE: RwLock<()> = RwLock::new(());
        let lock = || ALONE.read().unwrap_or_else(PoisonError::into_inner);
        let lock_all = || ALONE.write().unwrap_or_else(PoisonError::into_inner);
        let _others = (!self.alone).then(lock);
        let _all = self.alone.then(lock_all);
        let running = limit::Running::start(self.name(), self.seconds);
        // MLX keeps streams and other state per thread, so a separate thread hides them from other
        // tests.
        let thread = thread::Builder::new().name(self.name().to_owned()).spawn(|| {
            catch_unwind(|| (self.run)(self)).unwrap_or_else(|_| Err(panics::last_of_this_thread()))
        })?;
        let result = thread.join().unwrap_or_else(|_| Err("a panic while the thread ended".into()));
        result.map_err(|text| format!("{text}\n{}", panics::of_other_threads()))?;
        come_to_rest(&running)?;
        Ok(())
    }
}

/// No failure may leave a task that MLX counts forever. While other tests run, theirs count too;
/// the last test finds the leftovers.
fn come_to_rest(running: &limit::Running) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let tasks = active_tasks().map_err(|error| error.to_string())?;
        if tasks == 0 || !running.is_alone() {
            return Ok(());
        }
        if start.elapsed() > REST {
            return Err(format!("MLX still counts {tasks} active tasks after {REST:?} at rest"));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// The command line, and the names that select tests, of which libtest_mimic takes only one.
fn command_line() -> (Arguments, Vec<String>) {
    const WITH_VALUE: [&str; 5] = ["--test-threads", "--skip", "--color", "--format", "--logfile"];
    let (mut options, mut names) = (Vec::new(), Vec::new());
    let mut words = std::env::args();
    options.extend(words.next());
    while let Some(word) = words.next() {
        if !word.starts_with('-') {
            names.push(word);
            continue;
        }
        let value = WITH_VALUE.contains(&&*word).then(|| words.next()).flatten();
        options.push(word);
        options.extend(value);
    }
    (Arguments::from_iter(options), names)
}

/// Runs the tests that the command line selects.
pub fn main() -> ExitCode {
    let (arguments, names) = command_line();
    let seed = std::env::var(SEED).ok().and_then(|text| text.parse().ok());
    let seed: u32 = seed.unwrap_or_else(|| fastrand::u32(..));
    let mut tests: Vec<&'static Test> =
        inventory::iter::<Test>.into_iter().chain(&*OF_TABLE).collect();
    let chosen = |test: &&Test| match arguments.exact {
        true => names.iter().any(|name| test.name() == name),
        false => names.is_empty() || names.iter().any(|name| test.name().contains(name.as_str())),
    };
    tests.retain(chosen);
    tests.sort_by_key(|test| test.path);
    fastrand::Rng::with_seed(seed.into()).shuffle(&mut tests);
    let trials = tests
        .into_iter()
        .map(|test| Trial::test(test.name(), || test.check()).with_ignored_flag(test.ignored));
    if !arguments.list {
        eprintln!("suite: the order of seed {seed}; {SEED}={seed} repeats it");
    }
    panics::keep();
    limit::watch();
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if !arguments.list {
        eprintln!("suite: the slowest tests: {}", limit::slowest(SLOWEST));
    }
    conclusion.exit_code()
}
