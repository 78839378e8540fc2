//! The suite again with `eval_gpu` instead of `eval_cpu`: the Metal kernels in a simulator that
//! finds races, stray accesses and divergent barriers. Each run is a child process, because the
//! variables that choose the simulator apply to a whole process.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use mlx_primitives::async_eval;
use mlx_primitives::device::synchronize;

use crate::harness;
use crate::support::compare::assert_same;
use crate::support::input::random32;
use crate::support::{Checked, OPS, message};

const SCHEDULE: &str = "MLX_PRIMITIVES_SIMULATE_METAL";
const THREADS: &str = "MLX_PRIMITIVES_SIMULATE_THREADS";
const LOG: &str = "MLX_PRIMITIVES_SIMULATE_LOG";
const VARIABLES: [&str; 3] = [SCHEDULE, THREADS, LOG];

/// Tests that run no primitive, choose their device, are run by `kernel_traffic`, break the
/// environment of the kernels, or take minutes.
const LEFT_OUT: [&str; 21] = [
    "build::",
    "cli_faults::",
    "conformance::",
    "endings::",
    "failures::",
    "file_faults::",
    "custom::after::",
    "custom::faults::",
    "distributed::",
    "split::",
    "levels::",
    "dispatches::",
    "one_stream::",
    "pipelines::",
    "simulated::",
    "tidy::",
    "tune::command::",
    "tune::ops_of_this_process",
    "::moves_",
    "memory::planted_overflow",
    "generation_ends_for_a_reason",
];

/// Tests that take long and run only kernels that other tests run too. scripts/verify.sh runs them,
/// in one order of threads.
const ONCE: [&str; 17] = [
    "adapters::",
    "cache::",
    "checkpoints::",
    "cli::",
    "config_keys::texts_grow",
    "conversions::",
    "generation::",
    "graph::dropped",
    "llama::",
    "memory::",
    "parts_of_ops::",
    "random_weights::",
    "sampling::",
    "threads::",
    "tokenizer::",
    "tools::",
    "verify::",
];

/// Runs this binary again, with only these of the simulator's variables.
fn suite(arguments: &[&str], variables: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("a running test"));
    for name in VARIABLES {
        command.env_remove(name);
    }
    // The simulator takes about ten times as long as CPU kernels.
    command.args(arguments).envs(variables.iter().copied()).env(harness::PATIENCE, "10");
    command.output().expect("the running binary")
}

fn text(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    parts.concat()
}

/// The number before `word` in libtest's summary.
fn summary(text: &str, word: &str) -> usize {
    let before = text.split(&format!(" {word}")).next().unwrap_or_default();
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("{word} in {text}"))
}

/// Runs the tests that `arguments` select, all of which must pass; returns how often each kernel
/// ran.
fn run(schedule: &str, threads: u32, arguments: &[&str]) -> BTreeMap<String, usize> {
    run_all(schedule, threads, arguments, "1").0
}

/// Like [`run`], but with a sample of the conformance table's comparisons; also returns the kernels of
/// every library that was loaded.
fn run_all(
    schedule: &str,
    threads: u32,
    arguments: &[&str],
    sample: &str,
) -> (BTreeMap<String, usize>, BTreeSet<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let log: PathBuf = folder.path().join("log");
    let (start, limit) = (Instant::now(), threads.to_string());
    let variables: [(&str, &Path); 4] = [
        (SCHEDULE, schedule.as_ref()),
        (THREADS, limit.as_ref()),
        (LOG, &log),
        (harness::SAMPLE, sample.as_ref()),
    ];
    let listed = text(&suite(&[arguments, &["--list"]].concat(), &[]));
    let listed = listed.lines().filter(|line| line.ends_with(": test")).count();
    let output = suite(arguments, &variables);
    let said = text(&output);
    assert!(output.status.success(), "{schedule}, {threads} threads:\n{said}");
    assert!(listed > 0 && summary(&said, "passed") == listed, "{listed} tests expected:\n{said}");
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
    (kernels, all.lines().map(str::to_owned).collect())
}

/// Runs the suite in one order of threads, with every kernel, without the slow tests.
fn suite_in_order(schedule: &str, sample: &str) {
    let left_out = LEFT_OUT.iter().chain(&ONCE);
    let arguments: Vec<&str> = left_out.flat_map(|name| ["--skip", *name]).collect();
    let (kernels, all) = run_all(schedule, 1024, &arguments, sample);
    // Every form, type and variant that metal/ instantiates.
    let idle: Vec<_> = all.iter().filter(|name| !kernels.contains_key(*name)).collect();
    assert!(idle.is_empty() && all.len() > 300, "{} kernels, not run: {idle:?}", all.len());
    assert!(kernels.values().sum::<usize>() > 20_000, "{kernels:?}");
}

/// With one in three comparisons of the table; scripts/verify.sh runs all, in two other orders.
#[test(seconds = 1800)]
fn every_kernel_of_the_suite() {
    suite_in_order("forward", "3");
}

/// The tests that `every_kernel_of_the_suite` skips.
fn tests_that_take_long() {
    let left_out = LEFT_OUT.iter().flat_map(|name| ["--skip", *name]);
    let arguments: Vec<&str> = ONCE.iter().copied().chain(left_out).collect();
    let kernels = run("forward", 1024, &arguments);
    assert!(kernels.values().sum::<usize>() > 20_000, "{kernels:?}");
}

#[test(seconds = 3600)]
#[ignore = "run by scripts/verify.sh"]
fn the_suite_in_other_orders_of_threads() {
    std::thread::scope(|scope| {
        scope.spawn(tests_that_take_long);
        scope.spawn(|| ["reversed", "shuffled:1"].map(|order| suite_in_order(order, "1")));
    });
}

/// If a pipeline allows fewer threads than planned, the plan is made again.
#[test(seconds = 1800)]
#[ignore = "run by scripts/verify.sh"]
fn pipelines_of_fewer_threads() {
    for threads in [32, 256] {
        let tests = ["sizes_in_every_type", "table::"];
        let kernels = run("forward", threads, &tests);
        assert!(kernels.values().sum::<usize>() > 300, "{kernels:?}");
    }
}

/// Ignored tests of the primitives count the kernels' traffic; this runs them.
#[test(seconds = 900)]
fn kernel_traffic() {
    let arguments = ["--ignored", "::moves_"];
    let kernels = run("forward", 1024, &arguments);
    assert!(kernels.len() > 2, "{kernels:?}");
}

/// Runs one of the ignored tests below in a process with faulty variables.
fn expect(test: &str, variables: &[(&str, &Path)]) {
    let name = format!("simulated::{test}");
    let output = suite(&["--exact", &name, "--ignored"], variables);
    let said = text(&output);
    assert!(output.status.success() && summary(&said, "passed") == 1, "{said}");
}

#[test]
fn failures_are_errors() {
    let nowhere = tempfile::tempdir().expect("a folder");
    expect("an_error_of_a_task", &[(SCHEDULE, "sideways".as_ref())]);
    expect("an_error_of_eval_gpu", &[(SCHEDULE, "forward".as_ref()), (THREADS, "0".as_ref())]);
    let compiler = ("METAL_SIM_CLANG", nowhere.path());
    expect("an_error_of_the_compiler", &[(SCHEDULE, "forward".as_ref()), compiler]);
}

#[test]
#[ignore = "run by failures_are_errors"]
fn an_error_of_a_task() -> Checked {
    for (name, op, _) in OPS {
        let x = random32(&[2, 3, 8], 1)?;
        let expected = "expected MLX_PRIMITIVES_SIMULATE_METAL to be forward";
        let said = message(op(&x)?.eval());
        assert!(said.contains(expected), "{name}: {said}");
        let said = message(op(&x)?.add(1.0)?.to_vec::<f32>());
        assert!(said.contains(expected), "{name}, used later: {said}");
        let y = op(&x)?;
        async_eval([&y])?;
        synchronize()?;
        let said = message(y.eval());
        assert!(said.contains(expected), "{name}, asynchronous: {said}");
        // The stream still works.
        assert_same(&x.multiply(1.0)?, &random32(&[2, 3, 8], 1)?, name)?;
    }
    Ok(())
}

fn each_says(expected: &str) -> Checked {
    for (name, op, _) in OPS {
        let said = message(op(&random32(&[2, 3, 8], 1)?)?.eval());
        assert!(said.contains(expected), "{name}: {said}");
    }
    Ok(())
}

#[test]
#[ignore = "run by failures_are_errors"]
fn an_error_of_eval_gpu() -> Checked {
    each_says("thread")
}

#[test]
#[ignore = "run by failures_are_errors"]
fn an_error_of_the_compiler() -> Checked {
    each_says("neither a compiler nor a folder with the PyPI package ziglang")
}
