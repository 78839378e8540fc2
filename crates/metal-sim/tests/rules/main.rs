//! Every planted mistake is flagged, on its line, and real kernels are clean.
#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;
mod lints;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use metal_sim::{Source, rules};

use lints::{LINTS, Lint, WARNINGS};

#[test]
fn planted_mistakes() {
    for lints in [LINTS, WARNINGS] {
        every_mistake_is_found(lints);
    }
}

fn every_mistake_is_found(lints: &[Lint]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mistakes.metal");
    let mut text = String::from("#include <metal_stdlib>\nusing namespace metal;\n");
    let mut rows = Vec::new(); // a line, the rule and what we have to say there
    for (rule, planted) in lints {
        assert!(planted.contains("// ! "), "nothing is planted for: {rule}");
        for line in planted.lines() {
            text = text + line + "\n";
            rows.push((text.lines().count() as u32, rule, line.split_once("// ! ")));
        }
    }
    std::fs::write(&path, text).unwrap();
    let found = rules::check(&Source::new(&path), common::compiler(), common::cache()).unwrap();
    let (mut missed, mut alarms) = (Vec::new(), Vec::new());
    for (number, rule, planted) in rows {
        let here: Vec<_> = found.iter().filter(|violation| violation.line == number).collect();
        match planted {
            Some((_, says)) if here.iter().any(|violation| violation.message.contains(says)) => {}
            Some((line, says)) => missed.push(format!("{rule}\n{line}\n{says}\n{here:?}")),
            None => alarms.extend(here),
        }
    }
    assert!(
        missed.is_empty() && alarms.is_empty(),
        "missed: {missed:#?}\nfalse alarms: {alarms:#?}"
    );
}

#[test]
fn own_kernels_are_clean() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !workspace.join("metal").exists() {
        return; // the crate has been taken out of its workspace
    }
    for folder in ["metal", "examples/own_primitive/metal", "tests/core/custom"] {
        let entries = std::fs::read_dir(workspace.join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let kernels: Vec<_> =
            paths.filter(|p| p.extension().is_some_and(|e| e == "metal")).collect();
        assert!(!kernels.is_empty(), "no kernels in {folder}");
        let next = AtomicUsize::new(0);
        let check = || {
            while let Some(path) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
                let source = Source::new(path);
                let found = rules::check(&source, common::compiler(), common::cache()).unwrap();
                assert!(found.is_empty(), "{}: {found:#?}", path.display());
            }
        };
        std::thread::scope(|scope| {
            (0..std::thread::available_parallelism().map_or(2, usize::from)).for_each(|_| {
                scope.spawn(check);
            });
        });
    }
}

/// Apart from bindings without an index.
#[test]
#[ignore = "needs METAL_SIM_MLX, a checkout of MLX"]
fn mlx_kernels_are_clean() {
    let root = std::env::var_os("METAL_SIM_MLX").expect("METAL_SIM_MLX names a checkout of MLX");
    let root = std::path::PathBuf::from(root);
    for name in ["rms_norm", "softmax", "layer_norm", "rope", "logsumexp", "arg_reduce"] {
        let path = root.join(format!("mlx/backend/metal/kernels/{name}.metal"));
        let source = Source::new(path).include_dir(&root);
        let found = rules::check(&source, common::compiler(), common::cache()).unwrap();
        let found: Vec<_> = found.into_iter().filter(|v| !v.advice).collect();
        assert!(found.is_empty(), "{name}: {found:#?}");
    }
}
