//! Tests files of cases. Each case is a kernel with the data that it runs on.
#![cfg(target_os = "linux")]

mod common;

use std::fs;

use common::{Ran, run};

const KERNELS: &str = "\
#include <metal_stdlib>
using namespace metal;
kernel void moved(const device int* x [[buffer(0)]], device int* y [[buffer(1)]],
    constant uint& by [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  y[i] = x[i + by] FACTOR;
}
";

const CASES: &str = r#"
source = "kernels/k.metal"
define = ["FACTOR=* 2"]

[[case]]
name = "in place"
entry = "moved"
grid = 4
threadgroup = [2, 1]
buffer = ["0=i32:4:@four.bin", "1=i32:4"]
bytes = ["2=u32:0"]
expect = ["1=i32:4:2,4,6,8"]

[[case]]
entry = "moved"
groups = [2]
threadgroup = 2
buffer = ["0=i32:4:iota", "1=i32:4"]
bytes = ["2=u32:SHIFT"]
order = "reversed"
"#;

/// Runs a file with the cases of `CASES`, followed by the cases of `more`.
fn cases(shift: &str, more: &str, arguments: &[&str]) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("checks/kernels")).unwrap();
    let write = |name: &str, content: &[u8]| {
        fs::write(folder.path().join("checks").join(name), content).unwrap();
    };
    write("kernels/k.metal", KERNELS.as_bytes());
    write("four.bin", &[1i32, 2, 3, 4].map(i32::to_le_bytes).concat());
    write("cases.toml", (CASES.replace("SHIFT", shift) + more).as_bytes());
    run(folder.path(), &[&["checks/cases.toml"], arguments].concat())
}

#[test]
fn clean_cases_are_counted() {
    let ran = cases("0", "", &[]);
    assert_eq!(ran.status, Some(0), "{}{}", ran.out, ran.err);
    assert!(
        ran.out.contains(
            "in place over 4x1x1 threads, 2x1x1 a group: no fault (forward, reversed, shuffled:1)"
        ),
        "{}",
        ran.out
    );
    assert!(
        ran.out.contains("moved over 2x1x1 threadgroups, 2x1x1 a group: no fault (reversed)"),
        "{}",
        ran.out
    );
    assert!(ran.out.ends_with("2 cases, 0 with faults\n"), "{}", ran.out);
}

#[test]
fn faults_of_all_cases_are_in_one_report() {
    let broken = "[[case]]\nname = \"broken\"\nentry = \"moved\"\ndefine = [\"FACTOR=* gone\"]\n\
                  [[case]]\nentry = \"gone\"\n";
    let ran = cases("1", broken, &[]);
    assert_eq!(ran.status, Some(1), "{}{}", ran.out, ran.err);
    for line in [
        "in place over 4x1x1 threads, 2x1x1 a group: no fault",
        "checks/kernels/k.metal:5: OutOfBounds: load of 4 bytes at offset 16",
        "     5 |   y[i] = x[i + by] FACTOR;",
        "broken: it does not run",
        "checks/kernels/k.metal:5: Failed: ",
        "has no kernel 'gone', only moved",
        "4 cases, 3 with faults",
    ] {
        assert!(ran.out.contains(line), "{line}:\n{}", ran.out);
    }
    let ran = cases("1", broken, &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let kinds = json["cases"].as_array().unwrap().iter();
    let kinds: Vec<_> = kinds.map(|case| case["faults"][0]["kind"].as_str()).collect();
    assert_eq!(kinds, [None, Some("OutOfBounds"), Some("Failed"), Some("Failed")]);
    assert!(json["cases"][1]["text"].as_str().unwrap().contains("1 fault (reversed)"));
    let ran = cases("1", broken, &["--sarif"]);
    let log: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let results = log["runs"][0]["results"].as_array().unwrap();
    assert_eq!(results.len(), 3, "{log}");
    assert_eq!(results[0]["locations"][0]["physicalLocation"]["region"]["startLine"], 5);
    let ran = cases("1", broken, &["--github"]);
    let annotation = "::error file=checks/kernels/k.metal,line=5,title=OutOfBounds::moved: load";
    assert!(ran.out.starts_with(annotation) && ran.out.lines().count() == 3, "{}", ran.out);
    assert!(ran.err.contains("4 cases, 3 with faults"), "{}", ran.err);
}

#[test]
fn bad_files_are_refused() {
    let entry = "[[case]]\nentry = \"moved\"\n";
    for (more, words) in [
        (
            "[[case]]\nentyr = \"x\"\n".to_owned(),
            "unknown field `entyr`, expected one of `name`, `source`, `entry`",
        ),
        ("[[cases]]\n".to_owned(), "unknown field `cases`"),
        ("[[case]]\nname = \"none\"\n".to_owned(), "case 3 names no entry"),
        (format!("{entry}grid = 1\ngroups = 1\n"), "case 3 has a grid and groups"),
        (format!("{entry}grid = \"4\"\n"), "expected a whole number, or a list of them"),
        (format!("{entry}order = \"random\"\n"), "unknown variant `random`"),
        (format!("{entry}buffer = [\"9=i32:4\"]\n"), "moved: 9=i32:4: the kernel has no buffer 9"),
        (format!("{entry}grid = [0]\n"), "moved: --grid: expected one to three numbers above 0"),
    ] {
        let ran = cases("0", &more, &[]);
        assert_eq!(ran.status, Some(2), "{more}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(words), "{more}: {}", ran.err);
    }
    let ran = cases("0", "", &["--grid", "4"]);
    assert_eq!(ran.status, Some(2), "{}", ran.err);
    assert!(ran.err.contains("says how its kernels run; give no other options"), "{}", ran.err);
}

#[test]
fn a_kernel_that_does_not_end_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = "\
#include <metal_stdlib>
using namespace metal;
kernel void spin(device atomic_uint* flag [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  if (i == 0) while (atomic_load_explicit(flag, memory_order_relaxed) == 0) {}
  else atomic_store_explicit(flag, 1, memory_order_relaxed);
}
";
    fs::write(folder.path().join("spin.metal"), kernel).unwrap();
    let size = ["--grid", "2", "--threadgroup", "2", "--buffer", "0=u32:1:zeros"];
    let arguments = [&["spin.metal", "--entry", "spin", "--timeout", "1"][..], &size].concat();
    let ran = run(folder.path(), &arguments);
    assert_eq!(ran.status, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.err.starts_with("error: spin (forward) has run for 1 s"), "{}", ran.err);
    let ran = run(folder.path(), &[&arguments[..], &["--order", "reversed"]].concat());
    assert_eq!(ran.status, Some(0), "{}{}", ran.out, ran.err);
}
