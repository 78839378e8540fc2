//! Runs tests of this binary again with `eval_gpu` in place of `eval_cpu`. A simulator then runs
//! the Metal kernels, and finds races, accesses out of bounds and divergent barriers. Each run is a
//! child process, because the environment variables that choose the simulator apply to a whole
//! process.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use crate::Simulated;

pub const SCHEDULE: &str = "MLX_PRIMITIVES_SIMULATE_METAL";
pub const THREADS: &str = "MLX_PRIMITIVES_SIMULATE_THREADS";
const LOG: &str = "MLX_PRIMITIVES_SIMULATE_LOG";
const VARIABLES: [&str; 3] = [SCHEDULE, THREADS, LOG];

/// Runs this binary in a child process. Of the simulator's environment variables, only `variables`
/// are set.
pub fn again(arguments: &[&str], variables: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("a running test"));
    for name in VARIABLES {
        command.env_remove(name);
    }
    // Kernels in the simulator take about ten times as long as CPU kernels.
    command.args(arguments).envs(variables.iter().copied()).env(crate::PATIENCE, "10");
    command.output().expect("the running binary")
}

pub fn text(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    parts.concat()
}

/// The number before `word` in the summary that the harness prints.
pub fn summary(text: &str, word: &str) -> usize {
    let before = text.split(&format!(" {word}")).next().unwrap_or_default();
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("{word} in {text}"))
}

/// A run of tests in the simulator.
pub struct Run<'a> {
    pub schedule: &'a str,
    pub threads: u32,
    pub arguments: &'a [&'a str],
    /// Only tests of this variant run. `None` runs all tests that the arguments select.
    pub tests: Option<Simulated>,
    /// If the sample is n, one in n comparisons of the conformance table runs.
    pub sample: &'a str,
    /// If true, ops use their kernels in `metal/nvidia/` if they have any.
    pub nvidia: bool,
}

impl Default for Run<'_> {
    fn default() -> Self {
        Self {
            schedule: "forward",
            threads: 1024,
            arguments: &[],
            tests: None,
            sample: "1",
            nvidia: false,
        }
    }
}

/// How often each kernel ran, and the names of all kernels in the libraries that were loaded.
pub struct Ran {
    pub kernels: BTreeMap<String, usize>,
    pub all: BTreeSet<String>,
}

impl Run<'_> {
    /// Runs the tests in a child process. Panics unless all of them pass.
    pub fn pass(&self) -> Ran {
        let Self { schedule, threads, arguments, sample, .. } = *self;
        let folder = tempfile::tempdir().expect("a folder");
        let log: PathBuf = folder.path().join("log");
        let (start, limit) = (Instant::now(), threads.to_string());
        let tests = self.tests.map(|tests| format!("{tests:?}"));
        let chosen = tests.iter().map(|tests| (crate::SIMULATED, Path::new(tests)));
        let nvidia = self.nvidia.then_some((crate::NVIDIA, Path::new("1")));
        let chosen: Vec<_> = chosen.chain(nvidia).collect();
        let simulator: [(&str, &Path); 4] = [
            (SCHEDULE, schedule.as_ref()),
            (THREADS, limit.as_ref()),
            (LOG, &log),
            (crate::SAMPLE, sample.as_ref()),
        ];
        let listed = text(&again(&[arguments, &["--list"]].concat(), &chosen));
        let listed = listed.lines().filter(|line| line.ends_with(": test")).count();
        let output = again(arguments, &[&simulator[..], &chosen].concat());
        let said = text(&output);
        assert!(output.status.success(), "{schedule}, {threads} threads:\n{said}");
        let passed = summary(&said, "passed");
        assert!(listed > 0 && passed == listed, "{listed} tests expected:\n{said}");
        let mut kernels = BTreeMap::new();
        for kernel in std::fs::read_to_string(&log).expect("dispatches").lines() {
            *kernels.entry(kernel.to_owned()).or_default() += 1;
        }
        let _ = writeln!(
            std::io::stderr(),
            "simulated eval_gpu: {schedule}, at most {threads} threads: {listed} tests, {} dispatches of {} kernels, {:.0} s",
            kernels.values().sum::<usize>(),
            kernels.len(),
            start.elapsed().as_secs_f64()
        );
        let all = std::fs::read_to_string(log.with_extension("kernels")).expect("kernels");
        Ran { kernels, all: all.lines().map(str::to_owned).collect() }
    }
}

/// Runs the short tests (`Simulated::Always`) with one order of threads.
pub fn once(schedule: &str, sample: &str) -> Ran {
    Run { schedule, sample, tests: Some(Simulated::Always), ..Run::default() }.pass()
}

/// Runs the short tests with two other orders of threads, and the long tests (`Simulated::Once`)
/// with one order.
pub fn in_other_orders(short: fn(&str)) {
    std::thread::scope(|scope| {
        scope.spawn(|| Run { tests: Some(Simulated::Once), ..Run::default() }.pass());
        scope.spawn(move || ["reversed", "shuffled:1"].map(short));
    });
}
