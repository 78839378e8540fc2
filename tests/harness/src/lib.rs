//! A test harness. It runs the tests of a binary in a random order, each on a separate thread and
//! with a time limit. After each test, MLX must be idle.

mod limit;
mod panics;
pub mod roles;
#[cfg(target_os = "linux")]
pub mod simulated;
pub mod support;
pub mod workers;

use std::env;
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

pub use inventory;
use libtest_mimic::{Arguments, Failed, Trial};
use mlx_primitives::device::active_tasks;
pub use mlx_primitives_catalog as table;
pub use test_attribute::test;

use crate::support::{Checked, root};
pub use limit::PATIENCE;

/// The default time limit of a test in seconds. It is about ten times as long as the slowest test
/// without a separate limit takes on two idle cores.
pub const DEFAULT_SECONDS: u64 = 300;

/// The environment variable with the seed for the order of the tests. If it is not set, each run
/// chooses a new seed.
const SEED: &str = "MLX_PRIMITIVES_TEST_SEED";

/// The environment variable with the size of a sample. If it is n, one in n comparisons of the
/// conformance table runs, and also the first comparison of each case. Otherwise all comparisons
/// run.
pub const SAMPLE: &str = "MLX_PRIMITIVES_TEST_SAMPLE";

/// If this environment variable is set, ops use the kernels of `metal/nvidia/` in the simulator.
const NVIDIA: &str = "MLX_PRIMITIVES_TEST_NVIDIA";

/// The environment variable with the name of a [`Simulated`] variant. If it is set, only tests of
/// this variant run.
const SIMULATED: &str = "MLX_PRIMITIVES_TEST_SIMULATED";

/// The harness prints the times of this many slowest tests.
const SLOWEST: usize = 8;

/// How long MLX may take to become idle after a test.
const REST: Duration = Duration::from_secs(20);

/// Whether a test runs again in the Metal simulator, which can run the threads of a kernel in
/// different orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simulated {
    /// `cargo test` runs the test in the simulator with one order of threads. scripts/verify.sh
    /// runs it with other orders.
    Always,
    /// scripts/verify.sh runs the test with one order of threads. The test takes long, and other
    /// tests run the same kernels.
    Once,
    /// The test does not run in the simulator. It runs no primitive, chooses its device, breaks the
    /// environment of the kernels, or takes minutes.
    Never,
}

/// A test that the attribute `#[test]` registers, or a function of the conformance table.
pub struct Test {
    pub path: &'static str,
    pub seconds: u64,
    pub ignored: bool,
    /// The test observes the whole process, so no other test may run at the same time.
    pub alone: bool,
    pub simulated: Simulated,
    pub run: fn(&Test) -> Result<(), String>,
}

inventory::collect!(Test);

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
    /// The path of the test without the crate's name.
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
        // MLX keeps streams and other state per thread, so each test gets a new thread.
        let thread = thread::Builder::new().name(self.name().to_owned()).spawn(|| {
            catch_unwind(|| (self.run)(self)).unwrap_or_else(|_| Err(panics::last_of_this_thread()))
        })?;
        let result = thread.join().unwrap_or_else(|_| Err("a panic while the thread ended".into()));
        result.map_err(|text| format!("{text}\n{}", panics::of_other_threads()))?;
        come_to_rest(&running)?;
        Ok(())
    }
}

/// Waits until MLX counts no active task. Tasks of other running tests count too, so only the last
/// running test can detect a task that never ends.
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

/// Splits the command line into options and the names that select tests. libtest_mimic accepts only
/// one name.
fn command_line() -> (Arguments, Vec<String>) {
    const WITH_VALUE: [&str; 5] = ["--test-threads", "--skip", "--color", "--format", "--logfile"];
    let (mut options, mut names) = (Vec::new(), Vec::new());
    let mut words = env::args();
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

/// Prepares the process. Sets `HF_HUB_OFFLINE`, so that tests use no network. Tests of the Hugging
/// Face hub use a server on this machine.
///
/// # Errors
///
/// Returns an error if the repository's folder does not exist.
pub fn start() -> std::io::Result<()> {
    // SAFETY: no other thread runs yet.
    unsafe { env::set_var("HF_HUB_OFFLINE", "1") };
    env::set_current_dir(root())
}

/// If an environment variable names a role, runs that role. Otherwise runs the tests that the
/// command line selects, from the registered tests and from `more`.
pub fn main(play: fn(&str) -> Checked<u8>, more: Vec<Test>) -> ExitCode {
    if let Err(error) = start() {
        eprintln!("{}: {error}", root().display());
        return ExitCode::FAILURE;
    }
    roles::role(play).unwrap_or_else(|| run(more.leak()))
}

fn run(more: &'static [Test]) -> ExitCode {
    let (arguments, names) = command_line();
    let seed = env::var(SEED).ok().and_then(|text| text.parse().ok());
    let seed: u32 = seed.unwrap_or_else(|| fastrand::u32(..));
    let mut tests: Vec<&'static Test> = inventory::iter::<Test>.into_iter().chain(more).collect();
    // The arguments of a run in the simulator may be `--exact` and a name. Then that test runs,
    // whatever its variant is.
    if let Ok(name) = env::var(SIMULATED)
        && !arguments.exact
    {
        tests.retain(|test| !test.ignored && format!("{:?}", test.simulated) == name);
    }
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
        eprintln!("tests: the order of seed {seed}; {SEED}={seed} repeats it");
    }
    panics::keep();
    limit::watch();
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if !arguments.list {
        eprintln!("tests: the slowest tests: {}", limit::slowest(SLOWEST));
    }
    conclusion.exit_code()
}
