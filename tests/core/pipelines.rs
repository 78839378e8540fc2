//! Builds a pipeline from every kernel of `metal/`. On a Mac, Metal builds it for the machine's
//! GPU. On Linux, the simulator builds it.

use std::collections::BTreeMap;
use std::io::Write;

use mlx_primitives::pipelines;
#[cfg(target_os = "linux")]
use mlx_primitives::simulator::{Schedule, with_metal};

use crate::support::Checked;

/// Builds a pipeline for each kernel. Panics if one cannot be built, or allows a wrong number of
/// threads.
fn limits() -> Checked {
    let (mut limits, mut failures) = (BTreeMap::<u32, Vec<String>>::new(), Vec::new());
    let all = pipelines::all();
    for pipeline in &all {
        match pipeline.most_threads() {
            Ok(threads) => limits.entry(threads).or_default().push(pipeline.kernel().to_owned()),
            Err(error) => failures.push(format!("{}: {error}", pipeline.kernel())),
        }
    }
    // Write directly to stderr, because the harness captures the output of a passing test.
    let mut stderr = std::io::stderr();
    writeln!(stderr, "pipelines: {} of {} kernels", all.len() - failures.len(), all.len())?;
    for (threads, kernels) in limits.iter().filter(|(threads, _)| **threads < 1024) {
        writeln!(stderr, "pipelines: up to {threads} threads: {}", kernels.join(" "))?;
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Every launch has at least 32 threads, one SIMD group, so a kernel must allow 32.
    assert!(limits.keys().all(|&threads| (32..=1024).contains(&threads)), "{limits:?}");
    Ok(())
}

#[test(simulated = never)]
fn every_kernel_has_a_pipeline() -> Checked {
    // Each file of metal/ has kernels, except the files for NVIDIA GPUs. All kernel names are
    // different. A stem is the name of a file without its extension.
    let all = pipelines::all();
    let names: std::collections::BTreeSet<&str> = all.iter().map(|one| one.kernel()).collect();
    assert_eq!(names.len(), all.len());
    let stems: std::collections::BTreeSet<&str> = all.iter().map(|one| one.stem()).collect();
    for path in crate::tidy::files("metal", &["metal"])? {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let instances = std::fs::read_to_string(&path)?.contains("MLXP_KERNEL(");
        let of_metal = !path.parent().is_some_and(|folder| folder.ends_with("nvidia"));
        assert_eq!(stems.contains(stem), instances && of_metal, "{stem}: {stems:?}");
    }
    #[cfg(target_os = "linux")]
    with_metal(Schedule::Forward, limits)??;
    #[cfg(not(target_os = "linux"))]
    limits()?;
    Ok(())
}
