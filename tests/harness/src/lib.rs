//! Runs the tests of a binary in a random order, each on a separate thread and with a time limit.
//! After each test, MLX must be idle.

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

/// The default time limit of a test in seconds. It is about ten times the time that the slowest
/// test with this limit takes on two idle cores.
pub const DEFAULT_SECONDS: u64 = 300;

/// The variable with the seed for the order of the tests. If it is not set, each run chooses a new
/// seed.
const SEED: &str = "MLX_PRIMITIVES_TEST_SEED";

/// The variable for a sample: one in this many comparisons of the conformance table runs, in
/// addition to the first comparison of each case. Without it, all comparisons run.
pub const SAMPLE: &str = "MLX_PRIMITIVES_TEST_SAMPLE";

/// With this variable, ops use the kernels of `metal/nvidia/` in the simulator.
const NVIDIA: &str = "MLX_PRIMITIVES_TEST_NVIDIA";

/// The variable with the name of a [`Simulated`]. With it only tests of this value run, and without
/// it all tests.
const SIMULATED: &str = "MLX_PRIMITIVES_TEST_SIMULATED";

/// The number of tests whose times are printed after all have run.
const SLOWEST: usize = 8;

/// How long MLX may take to become idle after a test.
const REST: Duration = Duration::from_secs(20);

/// Whether a binary runs a test again in the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simulated {
    /// `cargo test` runs it in the simulator, and scripts/verify.sh does in other orders of
    /// threads.
    Always,
    /// scripts/verify.sh runs it in one order of threads. It takes long, and other tests run its
    /// kernels too.
    Once,
    /// It does not run in the simulator, because it runs no primitive, chooses its device, breaks
    /// the environment of the kernels, or takes minutes.
    Never,
}

/// A test that the attribute `#[test]` registers, or a test of the conformance table.
pub struct Test {
    pub path: &'static str,
    pub seconds: u64,
    pub ignored: bool,
    /// Whether the test observes the whole process, so that no other test may run at the same time.
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
    /// The path of the test without the name of the crate.
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

/// After a failure, MLX must not count a task forever. While other tests run, their tasks count
/// too, so the last test finds tasks that remain.
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

/// The command line, and the names that select tests. libtest_mimic accepts only one name.
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

/// Prepares the process. Tests use no network: the tests of the hub name a server on this machine.
///
/// # Errors
///
/// If there is no folder of the repository.
pub fn start() -> std::io::Result<()> {
    // SAFETY: no other thread runs yet.
    unsafe { env::set_var("HF_HUB_OFFLINE", "1") };
    env::set_current_dir(root())
}

/// Runs the role that the environment names. Without one, runs the tests that the command line
/// selects, from the registered tests and from `more`.
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
    // A simulated test may run another test in a separate process, by its whole name.
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
