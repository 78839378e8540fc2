//! The suite over itself: sources with one thing wrong each, all of which it must notice.
#![cfg(target_os = "linux")]

mod common;
#[path = "common/suite/mod.rs"]
mod suite;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use metal_sim::{Constants, Library, Source};
use suite::dtype::Dtype;
use suite::equivalents::{EQUIVALENTS, known};
use suite::harness;
use suite::host::{Host, Launch};
use suite::mutate::{Mutant, mutants};
use suite::op::Case;
use suite::rules::{HOST_RULES, RULES};
use suite::{announce, cases, parallel, workspace};

const DTYPE: Dtype = Dtype::F32;
const OPS: [&str; 3] = ["rms_norm", "softmax", "rope"];
const EACH: &str = r#"MACRO("float32", float) MACRO("float16", half) MACRO("bfloat16", bfloat)"#;

/// One in this many mutants runs, unless `METAL_SIM_EVERY_MUTANT` is set.
const SAMPLE: usize = 8;

/// The classes that run without `METAL_SIM_ALL_MUTANTS`; of the host's code or of kernels.
const DEFAULT: &[(bool, &str)] = &[
    (false, "barrier"),
    (false, "guard"),
    (false, "slots"),
    (false, "initial"),
    (false, "buffers"),
    (false, "bound"),
    (true, "bound"),
    (true, "scratch"),
    (true, "grid"),
    (true, "form"),
    (true, "buffers"),
];

/// Strides, which the kernels compute in 64 bits, and the host's named constants run by default too.
fn is_default(mutant: &Mutant, host: bool) -> bool {
    let code = |text: &str| text.split("//").next().unwrap_or_default().trim().to_string();
    let words = |text: &str| code(text).replace(|c: char| c.is_ascii_digit(), "");
    let stride = !host && mutant.from.contains("size_t(");
    let named = mutant.class == "constant" && words(&mutant.from) != words(&mutant.to);
    DEFAULT.contains(&(host, mutant.class)) || stride || host && named
}

/// A case, its launch and the name of its kernel without the dtype.
struct Planned {
    case: Case,
    launch: Launch,
    kernel: String,
}

/// How a mutant was noticed, or the kernels of which it was not.
enum Outcome {
    Noticed(BTreeMap<&'static str, usize>),
    Missed(Vec<(String, Option<usize>)>, BTreeMap<&'static str, usize>),
    NoProgram,
}

fn planned() -> Vec<Planned> {
    let cases = cases::decisive(DTYPE);
    let launches = Host::build(&workspace().join("cpp")).unwrap().launches(&cases).unwrap();
    let plan = |(case, launch): (Case, Result<Launch, String>)| {
        let launch = launch.unwrap();
        let kernel = launch.kernel.trim_end_matches(DTYPE.name()).to_string();
        Planned { case, launch, kernel }
    };
    cases.into_iter().zip(launches).map(plan).collect()
}

/// A copy of a folder of sources, with one of them as `text` says.
fn copy(from: &Path, to: &Path, mutant: Option<&Mutant>) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        if entry.path().is_file() {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            std::fs::write(to.join(entry.file_name()), text).unwrap();
        }
    }
    if let Some(mutant) = mutant {
        std::fs::write(to.join(mutant.file.rsplit('/').next().unwrap()), &mutant.text).unwrap();
    }
}

/// Whether the code of `function` is part of a kernel.
fn reaches(function: &str, kernel: &str) -> bool {
    match function {
        "group_max" => kernel.contains("softmax_row_"),
        "combined_max" => kernel.contains("softmax_row"),
        "group_sum_at_once" | "group_max_at_once" => {
            kernel.contains("softmax_row") && !kernel.contains("softmax_row_")
        }
        "group_sum" | "shared_result" => {
            kernel.contains("softmax_row_")
                || reaches("combined_sum", kernel) && kernel.contains("rms")
        }
        "combined_sum" | "write_slot" => {
            kernel.contains("row") || kernel.contains("rms_norm_looped")
        }
        "larger" | "softmax_exp" => kernel.contains("softmax"),
        name if name.starts_with("mlxp_") => kernel.starts_with(name),
        name if name.ends_with("_simd") => kernel.contains(name),
        name if name.ends_with("_looped") => kernel.contains(name),
        name if name.ends_with("_row") => kernel.contains(name),
        _ => true,
    }
}

/// Compiles the kernels of `op` with the mutant and runs all of them that it touches.
fn kernels_with(mutant: &Mutant, op: &str, planned: &[Planned]) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    copy(&workspace().join("metal"), folder.path(), Some(mutant));
    let common = folder.path().join("common.h");
    let text = std::fs::read_to_string(&common).unwrap();
    assert!(text.contains(EACH));
    std::fs::write(&common, text.replace(EACH, "MACRO(\"float32\", float)")).unwrap();
    let source = Source::new(folder.path().join(format!("{op}.metal")));
    let Ok(library) = Library::compile(&source, common::compiler(), &folder.path().join("cache"))
    else {
        return Outcome::NoProgram;
    };
    let find = |name: &str| library.kernel(name, &Constants::new()).ok();
    let mut noticed = BTreeMap::new();
    let mut left = BTreeSet::new();
    let mut done = BTreeSet::new();
    for Planned { case, launch, kernel } in planned.iter().filter(|p| p.case.file() == op) {
        if !reaches(&mutant.function, kernel) || done.contains(kernel) {
            continue;
        }
        left.insert(kernel.clone());
        if let Err(failure) = harness::run(case, launch, &find) {
            *noticed.entry(failure.kind).or_default() += 1;
            done.insert(kernel.clone());
        }
    }
    let missed: Vec<_> = left.difference(&done).map(|k| (k.clone(), known(mutant, k))).collect();
    if missed.is_empty() { Outcome::Noticed(noticed) } else { Outcome::Missed(missed, noticed) }
}

/// Builds the host code with the mutant and runs what it launches.
fn host_with(mutant: &Mutant, libraries: &[Library], planned: &[Planned]) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    for name in ["metal", "cpp/plan", "cpp/gpu", "cpp/ops"] {
        let changed = mutant.file.starts_with(name).then_some(mutant);
        copy(&workspace().join(name), &folder.path().join(name), changed);
    }
    let Ok(host) = Host::build(&folder.path().join("cpp")) else {
        return Outcome::NoProgram;
    };
    let noticed = |kind| Outcome::Noticed(BTreeMap::from([(kind, 1)]));
    let cases: Vec<Case> = planned.iter().map(|p| p.case.clone()).collect();
    let Ok(launches) = host.launches(&cases) else {
        return noticed("crash");
    };
    let find = |name: &str| {
        libraries.iter().find_map(|library| library.kernel(name, &Constants::new()).ok())
    };
    for (planned, launch) in planned.iter().zip(launches) {
        match launch {
            Ok(launch) if launch == planned.launch => {}
            Ok(launch) => match harness::run(&planned.case, &launch, &find) {
                Ok(()) => {}
                Err(failure) => return noticed(failure.kind),
            },
            Err(_) => return noticed("refused"),
        }
    }
    let equivalent = known(mutant, "host");
    Outcome::Missed(vec![("host".to_string(), equivalent)], BTreeMap::new())
}

#[test]
fn mutants_are_noticed() {
    let start = Instant::now();
    let planned = planned();
    let library = |name: &&str| {
        Library::compile(&Source::new(common::metal(name)), common::compiler(), common::cache())
    };
    let libraries: Vec<_> = parallel(&OPS, library).into_iter().map(Result::unwrap).collect();
    let mut jobs = Vec::new();
    let read = |file: &str| std::fs::read_to_string(workspace().join(file)).unwrap();
    for (file, ops) in [
        ("metal/common.h", &OPS[..2]),
        ("metal/shared.h", &OPS[..2]),
        ("metal/rms_norm.metal", &OPS[..1]),
        ("metal/rms_norm_sums.h", &OPS[..1]),
        ("metal/softmax.metal", &OPS[1..2]),
        ("metal/softmax_rows.h", &OPS[1..2]),
        ("metal/rope.metal", &OPS[2..]),
        ("metal/rope.h", &OPS[2..]),
        ("metal/rope_turn.h", &OPS[2..]),
    ] {
        let list = mutants(file, &read(file), RULES);
        jobs.extend(list.into_iter().flat_map(|m| ops.iter().map(move |op| (m.clone(), *op))));
    }
    for file in [
        "metal/shared.h",
        "metal/rms_norm.h",
        "metal/softmax.h",
        "metal/rope.h",
        "cpp/plan/launch.h",
        "cpp/plan/rms_norm.h",
        "cpp/plan/softmax.h",
        "cpp/plan/rope.h",
        "cpp/gpu/launch.h",
        "cpp/gpu/launch.cpp",
        "cpp/gpu/rms_norm.cpp",
        "cpp/gpu/softmax.cpp",
        "cpp/gpu/rope.cpp",
    ] {
        jobs.extend(mutants(file, &read(file), HOST_RULES).into_iter().map(|m| (m, "host")));
    }
    if let Ok(only) = std::env::var("METAL_SIM_MUTANTS") {
        jobs.retain(|(mutant, _)| mutant.name().contains(&only));
    }
    let all = std::env::var_os("METAL_SIM_ALL_MUTANTS").is_some();
    jobs.retain(|(mutant, part)| all || is_default(mutant, *part == "host"));
    let (found, chosen) = (jobs.len(), std::env::var_os("METAL_SIM_MUTANTS").is_some());
    let every = all || chosen || std::env::var_os("METAL_SIM_EVERY_MUTANT").is_some();
    if !every {
        jobs = jobs.into_iter().step_by(SAMPLE).collect();
    }
    let outcomes = parallel(&jobs, |(mutant, part)| match *part {
        "host" => host_with(mutant, &libraries, &planned),
        op => kernels_with(mutant, op, &planned),
    });
    let mut classes: BTreeMap<(bool, &str), usize> = BTreeMap::new();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut survivors, mut used, mut no_program, mut equal) = (Vec::new(), BTreeSet::new(), 0, 0);
    for ((mutant, part), outcome) in jobs.iter().zip(outcomes) {
        let noticed = match outcome {
            Outcome::NoProgram => {
                no_program += 1;
                continue;
            }
            Outcome::Noticed(noticed) => noticed,
            Outcome::Missed(missed, noticed) => {
                for (kernel, equivalent) in &missed {
                    match equivalent {
                        Some(index) => drop(used.insert(*index)),
                        None => survivors.push(format!("{} [{kernel}]", mutant.name())),
                    }
                }
                if noticed.is_empty() {
                    equal += 1;
                    continue;
                }
                noticed
            }
        };
        *classes.entry((*part == "host", mutant.class)).or_default() += 1;
        for (kind, count) in noticed {
            *kinds.entry(kind).or_default() += count;
        }
    }
    announce(&format!(
        "metal-sim: {} of {found} mutants, {no_program} of them no programs, {equal} the same; noticed \
         (host, class): {classes:?}; by {kinds:?}; {:.0?}",
        jobs.len(),
        start.elapsed()
    ));
    assert!(survivors.is_empty(), "{} survive:\n{}", survivors.len(), survivors.join("\n"));
    let unused = (0..EQUIVALENTS.len()).filter(|index| !used.contains(index));
    let unused: Vec<_> = unused.map(|index| EQUIVALENTS[index]).collect();
    assert!(unused.is_empty() || chosen || !every, "{unused:#?}");
}
