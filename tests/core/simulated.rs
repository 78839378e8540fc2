//! Runs the tests of this binary again in the Metal simulator, and tests the simulator's errors.

use std::collections::BTreeSet;
use std::path::Path;

use harness::simulated::{Run, SCHEDULE, THREADS, again, in_other_orders, once, summary, text};
use mlx_primitives::async_eval;
use mlx_primitives::device::synchronize;

use crate::support::compare::assert_same;
use crate::support::input::random32;
use crate::support::{Checked, OPS, message};

/// Runs the short tests in the simulator, which runs the threads of a kernel in the order
/// `schedule`. Together the tests must run every kernel.
fn every_kernel(schedule: &str, sample: &str) {
    let ran = once(schedule, sample);
    // Find the kernels that metal/ instantiates and no test ran.
    let idle: Vec<_> = ran.all.iter().filter(|name| !ran.kernels.contains_key(*name)).collect();
    assert!(idle.is_empty() && ran.all.len() > 300, "{} kernels, not run: {idle:?}", ran.all.len());
    assert!(ran.kernels.values().sum::<usize>() > 20_000, "{:?}", ran.kernels);
}

/// Runs one in three comparisons of the conformance table. scripts/verify.sh runs all comparisons,
/// with two other orders of threads.
#[test(seconds = 1800, simulated = never)]
fn every_kernel_runs() {
    every_kernel("forward", "3");
}

#[test(seconds = 3600, simulated = never)]
#[ignore = "run by scripts/verify.sh"]
fn in_other_orders_of_threads() {
    in_other_orders(|order| every_kernel(order, "1"));
}

/// Runs the kernels for NVIDIA GPUs. Each weight format runs with at least one group size, and 4
/// bits with all group sizes.
#[test(seconds = 1800, simulated = never)]
fn kernels_for_nvidia_gpus() {
    let arguments = &[
        "quantized_linear",
        "quantized_matmul::",
        "attention",
        "bits_of_one",
        "gated_rows",
        "--skip",
        "moves_",
    ];
    let ran = Run { arguments, nvidia: true, sample: "5", ..Run::default() }.pass();
    let kernels = |name: &str| -> BTreeSet<String> {
        let of_nvidia = ["_few_", "_tiles_", "linear_gated_"];
        let few = of_nvidia.iter().any(|part| name.contains(part)).then(|| {
            let group = ["_g32", "_g64", "_g128"].into_iter().find(|group| name.contains(group));
            name.replace(group.filter(|_| !name.contains("_b4_")).unwrap_or("_"), "_")
        });
        few.into_iter().collect()
    };
    let all: BTreeSet<String> = ran.all.iter().flat_map(|name| kernels(name)).collect();
    let run: BTreeSet<String> = ran.kernels.keys().flat_map(|name| kernels(name)).collect();
    assert!(all == run && run.len() == 104, "{all:?}, {run:?}");
}

/// In these runs, pipelines allow fewer threads than the op's launch plan has. The op must then
/// make another plan.
#[test(seconds = 1800, simulated = never)]
#[ignore = "run by scripts/verify.sh"]
fn pipelines_of_fewer_threads() {
    for threads in [32, 256] {
        let arguments = &["sizes_in_every_type", "table::"];
        let kernels = Run { threads, arguments, ..Run::default() }.pass().kernels;
        assert!(kernels.values().sum::<usize>() > 300, "{kernels:?}");
    }
}

/// Runs the ignored tests whose names begin with `moves_`. They count the memory traffic of
/// kernels.
#[test(seconds = 900, simulated = never)]
fn kernel_traffic() {
    let kernels = Run { arguments: &["--ignored", "::moves_"], ..Run::default() }.pass().kernels;
    assert!(kernels.len() > 2, "{kernels:?}");
}

/// Runs one of the ignored tests of this file in a child process, with invalid environment
/// variables.
fn expect(test: &str, variables: &[(&str, &Path)]) {
    let name = format!("simulated::{test}");
    let output = again(&["--exact", &name, "--ignored"], variables);
    let said = text(&output);
    assert!(output.status.success() && summary(&said, "passed") == 1, "{said}");
}

#[test(simulated = never)]
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
