//! Checks that every planted mistake is reported on its line, and that real kernels are clean.
#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;
mod lints;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use metal_sim::{Library, Source, rules};

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

/// Code of public kernels that Apple's front end accepts.
const ALLOWED: &str = r#"
#include <metal_stdlib>
#include <metal_logging>
using namespace metal;
constant os_log logger("kernels", "allowed");
struct C { float re; float im; };
template <int N> struct Table {};
template <> struct Table<2> {
  static constexpr constant float rows[2][2] = {{1, 2}, {3, 4}};
};
constant constexpr const float Table<2>::rows[2][2];
struct Flag {
  uint bits;
  constexpr METAL_FUNC operator bool() const thread { return bits & 1; }
  constexpr METAL_FUNC operator bool() const device { return bits & 1; }
};
template <typename T> [[kernel]] void sized(const device T* x [[buffer(0)]],
    device T* y [[buffer(1)]], const device Flag* on [[buffer(2)]],
    uint i [[thread_position_in_grid]]) {
  if (bool(on[i])) y[i] = x[i] * Table<2>::rows[1][1];
}
template [[host_name("sized_float")]] [[kernel]] void sized(const device float* x [[buffer(0)]],
    device float* y [[buffer(1)]], const device Flag* on [[buffer(2)]],
    uint i [[thread_position_in_grid]]);
constexpr bool operator>=(C a, C b) { return a.re >= b.re; }
template <typename T> T pick(const device T* x, T y, bool first) {
  return first ? x[0] : y;
}
template <typename T> void swap_all(thread T (&values)[4], const thread T (&others)[4]) {
  for (int i = 0; i < 4; i++) values[i] += others[i];
}
struct Point { packed_float3 at; float weight; };
static_assert(sizeof(Point) == 16, "as the host has it");
kernel void transpose(device packed_float3* p [[buffer(0)]], constant packed_half3& q [[buffer(1)]],
    uint i [[thread_position_in_grid]]) {
  threadgroup packed_float3 t[8];
  t[i] = packed_float3(float2(p[i].x, p[i].y), 1);
  p[i][1] = dot(float3(t[i]), float3(q));
  p[i] += t[i] * 2.0f;
}
kernel void allowed(const device C* c [[buffer(0)]], device C* d [[buffer(1)]],
    const device float4x4* x [[buffer(2)]], device float2x4* y [[buffer(3)]],
    constant float3x3& z [[buffer(4)]], uint i [[thread_position_in_grid]]) {
  threadgroup float4x4 t[8];
  logger.log_debug("thread %d", i);
  d[i] = pick(c, C{1, 2}, i > 3);
  t[i][3] = x[i][3] * z[0].x;
  float values[4] = {1, 2, 3, 4};
  swap_all(values, values);
  y[i][1] = t[i][3] + values[2];
}
"#;

#[test]
fn what_metal_allows_is_clean() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("allowed.metal");
    std::fs::write(&path, ALLOWED).unwrap();
    let found = rules::check(&Source::new(&path), common::compiler(), common::cache()).unwrap();
    assert!(found.is_empty(), "{found:#?}");
    let library = Library::compile(&Source::new(&path), common::compiler(), common::cache());
    let names: Vec<_> = library.unwrap().kernels().unwrap().into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["sized_float", "transpose", "allowed"]);
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

/// Advice does not count, such as advice about bindings without an index.
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
