//! Runs the command as a user does.
#![cfg(target_os = "linux")]

mod common;

use std::path::Path;

use common::Ran;

const KERNELS: &str = "\
#include <metal_stdlib>
using namespace metal;
constant uint FACTOR [[function_constant(0)]];
struct Size { uint n; float scale; };

kernel void group_sum(const device float* x [[buffer(0)]], device float* y [[buffer(1)]],
    constant Size& size [[buffer(2)]], threadgroup float* room [[threadgroup(0)]],
    uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]],
    uint g [[threadgroup_position_in_grid]], uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  float sum = simd_sum(i < size.n ? x[i] : 0.0f);
  if (lane == 0) room[simd] = sum;
#ifdef BARRIER
  threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
  if (t == 0) y[g] = (room[0] + room[1]) * size.scale;
}

kernel void shifted(const device float* x [[buffer(0)]], device float* y [[buffer(1)]],
    uint i [[thread_position_in_grid]]) {
  y[i] = x[i + 1];
}

kernel void halves(device half* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  if (i < FACTOR) y[i] = half(i);
}

kernel void stuck(device int* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  if (i < 40) threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = 1;
}

kernel void cast(const device half4* x [[buffer(0)]], device float4* y [[buffer(1)]],
    uint i [[thread_position_in_grid]]) {
  float2x2 turn = float2x2(float2(0, 1), float2(-1, 0));
  const float4 wide = (float4) x[i] * 2.0f + (float4) 1;
  y[i] = float4(turn * wide.xy, fast::max(wide.zw, (float2)(half2) wide.xy));
}

kernel void counted(device atomic_uint* y [[buffer(0)]], const device bool* on [[buffer(1)]],
    uint i [[thread_position_in_grid]]) {
  if (on[i]) atomic_fetch_add_explicit(y, 1u, memory_order_relaxed);
}

#ifdef FIRST
kernel void same(device volatile int* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  for (int k = i == FIRST ? 1 : 2; k <= 2; k++) y[0] = k;
}
#endif

kernel void image(texture2d<float> from [[texture(0)]], device float* y [[buffer(0)]]) {
  y[0] = from.read(uint2(0)).x;
}
";

fn run(folder: &Path, arguments: &[&str]) -> Ran {
    std::fs::write(folder.join("k.metal"), KERNELS).unwrap();
    common::run(folder, &[&["k.metal"], arguments].concat())
}

const SUM: [&str; 13] = [
    "--entry",
    "group_sum",
    "--grid",
    "100",
    "--threadgroup",
    "64",
    "--buffer",
    "0=f32:100:random",
    "--buffer",
    "1=f32:2",
    "--bytes",
    "2=u32:100+f32:0.5",
    "--memory=0=16",
];

#[test]
fn kernels_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let ran = run(folder.path(), &["-D", "BARRIER"]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    for line in ["group_sum (k.metal:6)", "  0  room", "threadgroup", "counted (k.metal:"] {
        assert!(ran.out.contains(line), "{}", ran.out);
    }
    assert!(ran.err.contains("note: image takes a texture, 'from' at "), "{}", ran.err);
    let ran = run(folder.path(), &["--entry", "image"]);
    assert_eq!((ran.status, ran.out.as_str()), (Some(1), ""));
    assert!(ran.err.contains("image takes a texture"), "{}", ran.err);
    let ran = run(folder.path(), &["--json"]);
    let listed: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(listed["kernels"].as_array().unwrap().len(), 6);
}

#[test]
fn a_missing_barrier_is_a_race_in_both_lines() {
    let folder = tempfile::tempdir().unwrap();
    let ran = run(folder.path(), &SUM);
    assert_eq!(ran.status, Some(1), "{}", ran.err);
    assert!(ran.out.contains("k.metal:12: DataRace: store"), "{}", ran.out);
    assert!(ran.out.contains("k.metal:16: DataRace: load"), "{}", ran.out);
    assert!(ran.out.contains("    12 |   if (lane == 0) room[simd] = sum;"), "{}", ran.out);
    let ran = run(folder.path(), &[&SUM[..], &["-D", "BARRIER"]].concat());
    assert_eq!(ran.status, Some(0), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("no fault (forward, reversed, shuffled:1)"), "{}", ran.out);
}

#[test]
fn results_are_for_programs_too() {
    let folder = tempfile::tempdir().unwrap();
    let of = |format: &str| run(folder.path(), &[&SUM[..], &[format]].concat());
    let json: serde_json::Value = serde_json::from_str(&of("--json").out).unwrap();
    let faults = json["faults"].as_array().unwrap().iter();
    let races: Vec<_> = faults.filter(|fault| fault["kind"] == "DataRace").collect();
    assert!(races.len() >= 2 && races.iter().all(|race| race["places"][0]["file"] == "k.metal"));
    let sarif: serde_json::Value = serde_json::from_str(&of("--sarif").out).unwrap();
    let place = &sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
    assert!(place["region"]["startLine"].as_u64() > Some(5), "{sarif}");
    assert!(of("--github").out.contains("::error file=k.metal,line=12,title=DataRace::group_sum"));
}

#[test]
fn equal_stores_are_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let same = |rest: &[&str]| {
        let size = ["--entry", "same", "--grid", "64", "--threadgroup", "64", "--buffer"];
        run(folder.path(), &[&size[..], &["0=i32:1", "-D"], rest].concat())
    };
    let ran = same(&["FIRST=64"]);
    assert_eq!(ran.status, Some(0), "{}{}", ran.out, ran.err);
    let head =
        "threads, 64x1x1 a group: no fault, 1 note (forward, reversed, shuffled:1)\n64 threads";
    let note = "note: k.metal:47: DataRace: store at offset 0 of buffer(0) 'y' races with a store of \
                the same value by thread 0 of threadgroup number 0, at k.metal:47";
    assert!(ran.out.contains(head) && ran.out.contains(note), "{}", ran.out);
    let of = |format| same(&["FIRST=64", format]).out;
    let json: serde_json::Value = serde_json::from_str(&of("--json")).unwrap();
    assert_eq!(json["faults"], serde_json::json!([]));
    assert_eq!(json["notes"][0]["earlier"][0]["line"], 47, "{json}");
    let sarif: serde_json::Value = serde_json::from_str(&of("--sarif")).unwrap();
    assert_eq!(sarif["runs"][0]["results"][0]["level"], "note", "{sarif}");
    assert!(of("--github").contains("::notice file=k.metal,line=47,title=DataRace::same"));
    // Thread 0 stores 1 and then 2, and the other threads store 2. In the forward order, thread 0
    // runs first, so its second store hides the first. In the other orders, its first store
    // replaces a 2 of another thread.
    let ran = same(&["FIRST=0"]);
    assert_eq!(ran.status, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("a group: 1 fault (forward, reversed, "), "{}", ran.out);
    assert!(!ran.out.contains("in the orders forward"), "{}", ran.out);
}

#[test]
fn faults_have_their_kinds() {
    let folder = tempfile::tempdir().unwrap();
    let buffer = "--buffer";
    let cases: [(&[&str], &str); 5] = [
        (&["shifted", buffer, "0=f32:64:iota", buffer, "1=f32:64"], "k.metal:21: OutOfBounds"),
        (&["shifted", buffer, "0=f32:65:1.5", buffer, "1=f32:80"], "UnwrittenOutput: 64 bytes"),
        (&["halves", buffer, "0=f16:64", "--constant", "0=u32:60"], "UnwrittenOutput: 8 bytes"),
        (&["stuck", buffer, "0=i32:64"], "DivergentBarrier"),
        (&["counted", buffer, "0=u32:1:0"], "Argument: buffer(1) 'on' is not bound"),
    ];
    for (arguments, fault) in cases {
        let size = ["--grid", "64", "--threadgroup", "64", "--entry"];
        let ran = run(folder.path(), &[&size[..], arguments].concat());
        assert_eq!(ran.status, Some(1), "{fault}: {}{}", ran.out, ran.err);
        assert!(ran.out.contains(fault), "{fault}: {}", ran.out);
    }
}

#[test]
fn clean_kernels_have_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    let buffer = "--buffer";
    let cases: [&[&str]; 5] = [
        &["cast", buffer, "0=f16:256:random", buffer, "1=f32:256"],
        &["shifted", buffer, "0=f32:65:zeros", buffer, "1=f32:64"],
        &["halves", buffer, "0=f16:64:zeros", "--constant", "0=u32:60"],
        &["counted", buffer, "0=u32:1:0", buffer, "1=bool:64:random", "--order", "shuffled"],
        &["halves", buffer, "0=f16:64", "--constant=0=u32:64", "--order", "reversed"],
    ];
    for arguments in cases {
        let size = ["--groups", "2", "--threadgroup", "32", "--entry"];
        let ran = run(folder.path(), &[&size[..], arguments].concat());
        assert_eq!(ran.status, Some(0), "{arguments:?}: {}{}", ran.out, ran.err);
    }
}

#[test]
fn buffers_share_memory_and_begin_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let shifted = |rest: &[&str]| {
        let size = ["--entry", "shifted", "--grid", "64", "--threadgroup", "32", "--buffer"];
        run(folder.path(), &[&size[..], &["1=f32:65:iota", "--buffer"], rest].concat())
    };
    // The input and the output share memory, so a thread stores to an element that another thread
    // loads.
    let ran = shifted(&["0=buffer:1"]);
    assert_eq!(ran.status, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("k.metal:21: DataRace: "), "{}", ran.out);
    // The offset cancels the shift, so each thread stores the value that it has loaded from the
    // same element.
    let ran = shifted(&["0=buffer:1", "--offset", "1=4", "--expect", "1=f32:65:iota"]);
    assert_eq!(ran.status, Some(0), "{}{}", ran.out, ran.err);
    let ran = shifted(&["0=f32:64:zeros", "--offset", "0=4"]);
    assert_eq!(ran.status, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("OutOfBounds: load of 4 bytes at offset 256"), "{}", ran.out);
    for (rest, words) in [
        (["0=buffer:7", "--order", "all"], "0=buffer:7: no --buffer 7=... before"),
        (["0=buffer:1", "--offset", "2=4"], "2=4: there is no --buffer 2=..."),
    ] {
        let ran = shifted(&rest);
        assert_eq!(ran.status, Some(2), "{}{}", ran.out, ran.err);
        assert!(ran.err.contains(words), "{}", ran.err);
    }
}

#[test]
fn costs_need_a_compiler_of_mesas() {
    let folder = tempfile::tempdir().unwrap();
    let checkout = folder.path().join("scripts");
    std::fs::create_dir(&checkout).unwrap();
    let cost = || {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_metal-check"));
        program.current_dir(folder.path()).env("METAL_CHECK_CHECKOUT", folder.path());
        let output = program.args(["k.metal", "--cost", "-D", "X"]).output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
        Ran { status: output.status.code(), out, err }
    };
    std::fs::write(folder.path().join("k.metal"), KERNELS).unwrap();
    let ran = cost();
    assert_eq!(ran.status, Some(1), "{}", ran.out);
    assert!(ran.err.contains("--cost needs Mesa's compiler for Apple's GPUs"), "{}", ran.err);
    // This script replaces the checkout's script.
    let answer = r#"{"f": {"registers": 40, "threads": 1024, "spilled": 0, "arrays": 8, "alu": 229.5, "ic": 110}}"#;
    let body = format!("#!/bin/sh\n[ \"$1\" = --file ] && [ \"$3\" = -DX ] && echo '{answer}'\n");
    std::fs::write(checkout.join("agx.sh"), body).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(checkout.join("agx.sh"), executable).unwrap();
    let ran = cost();
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let table = "registers  threads  spilled  arrays  cycles  integer  kernel\n       \
                 40     1024        0       8   229.5      110  f\n";
    assert_eq!(ran.out, table);
}

#[test]
fn bad_usage_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&[&str], &str, i32); 14] = [
        (&["--entry", "nothing"], "has no kernel 'nothing', only group_sum", 1),
        (&["--entry", "stuck", "--grid", "0"], "--grid: expected one to three numbers above 0", 2),
        (&["--entry", "stuck", "--grid", "1,2,3,4"], "--grid: expected one to three numbers", 2),
        (&["--entry", "stuck", "--buffer", "0=f99:4"], "no type f99; there are i8", 2),
        (&["--entry", "stuck", "--buffer", "7=f32:4"], "the kernel has no buffer 7", 2),
        (
            &["--entry", "shifted", "--buffer", "0=f32:4"],
            "so it needs contents, such as 0=f32:4:",
            2,
        ),
        (&["--entry", "stuck", "--bytes", "0=u8:256"], "256 does not fit its type", 2),
        (&["--entry", "stuck", "--buffer", "0=u8:99999999999999"], "a buffer has at most", 2),
        (&["-D", "using=break"], "does not compile", 1),
        (&["--entry", "stuck", "--buffer", "0=i32:3:1,2"], "expected 3 numbers, got 2", 2),
        (&["--entry", "stuck", "--expect", "0=i32:3:zeros"], "there is no --buffer 0=", 2),
        (
            &["--entry", "stuck", "--buffer", "0=i32:3", "--expect", "0=i32:2:zeros"],
            "8 bytes are expected, and the buffer has 12",
            2,
        ),
        (
            &["--entry", "stuck", "--buffer", "0=i32:1", "--save", "1=x"],
            "there is no --buffer 1=",
            2,
        ),
        (&["--order", "random"], "invalid value 'random' for '--order <ORDER>'", 2),
    ];
    for (arguments, words, status) in cases {
        let ran = run(folder.path(), arguments);
        assert_eq!(ran.status, Some(status), "{arguments:?}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(words), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn results_are_compared_and_saved() {
    let folder = tempfile::tempdir().unwrap();
    let cast = |buffer: &str, rest: &[&str]| {
        let size = ["--entry", "cast", "--grid", "1", "--buffer", buffer, "--buffer", "1=f32:4"];
        run(folder.path(), &[&size[..], rest].concat())
    };
    let ran = cast("0=f16:4:1,2,3,4", &["--expect", "1=f32:4:-5,3,7,9", "--save", "1=y.bin"]);
    assert_eq!(ran.status, Some(0), "{}{}", ran.out, ran.err);
    let saved = std::fs::read(folder.path().join("y.bin")).unwrap();
    assert_eq!(saved, [-5.0f32, 3.0, 7.0, 9.0].map(f32::to_le_bytes).concat());
    let near = ["--expect", "1=f32:4:-5,3,7,9.001", "--tolerance"];
    assert_eq!(cast("0=f16:4:1,2,3,4", &[&near[..], &["0.001"]].concat()).status, Some(0));
    let ran = cast("0=f16:4:1,2,3,4", &[&near[..], &["0.0001"]].concat());
    assert_eq!(ran.status, Some(1), "{}{}", ran.out, ran.err);
    let wrong = "WrongResult: buffer 1: element 3 is 9, expected 9.00";
    assert!(ran.out.contains(wrong) && ran.out.contains("; 1 of 4 differ"), "{}", ran.out);
    assert!(ran.out.contains("in the orders forward, reversed, shuffled:1"), "{}", ran.out);
}
