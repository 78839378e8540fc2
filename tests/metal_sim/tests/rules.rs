//! Every planted mistake is flagged, on its line, and real kernels are clean.

mod common;

use std::path::Path;

use metal_sim::{Source, rules};

/// A mistake for each line that has a `// !`, followed by a part of the message.
const MISTAKES: &str = r#"
#include <metal_stdlib>
using namespace metal;
struct Pair {
  float a, b;
};
float bare(float* x) { // ! without an address space
  return *x;
}
inline double twice(float x) { // ! double
  return 2 * x;
}
float factorial(int n) { // ! recursive
  return n < 2 ? 1.0f : n * factorial(n - 1);
}
float even(int n);
float odd(int n) { // ! recursive
  return n == 0 ? 0.0f : even(n - 1);
}
float even(int n) { // ! recursive
  return n == 0 ? 1.0f : odd(n - 1);
}
kernel void mixes_spaces(device float* x [[buffer(0)]], constant float* y [[buffer(1)]]) {
  device float* z = y; // ! cannot initialize
  z[0] = x[0];
}
kernel void narrows(device bfloat* x [[buffer(0)]], const device float* y [[buffer(1)]]) {
  x[0] = y[0]; // ! implicit conversion
}
kernel void to_constant(constant float* x [[buffer(0)]]) {
  x[0] = 1.0f; // ! read-only
}
kernel void implicit_index(device float* x) { // ! no explicit
  x[0] = 0.0f;
}
kernel void unspaced(float* x [[buffer(0)]]) { // ! address space
  x[0] = 0.0f;
}
kernel float returns(device float* x [[buffer(0)]]) { // ! must return void
  return x[0];
}
kernel void initialised(device float* x [[buffer(0)]]) {
  threadgroup float t[2] = {0, 0}; // ! initialiser
  x[0] = t[0];
}
float helper(float x) {
  threadgroup float t[2]; // ! outside a kernel
  t[0] = x;
  return t[0];
}
kernel void odd_attribute(device float* x [[buffer(0)]], uint i [[thread_position]]) { // ! unsupported attribute
  x[i] = 0.0f;
}
kernel void scalar_size(device float* x [[buffer(0)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]) { // ! must all be scalars
  x[group.y * threads + index] = 0.0f;
}
template <typename T> kernel void vector_size(device T* x [[buffer(0)]],
    uint i [[thread_position_in_grid]],
    const ushort2 size [[threads_per_grid]]) { // ! must all be scalars
  x[i] = T(size.y);
}
kernel void two_widths(device float* x [[buffer(0)]],
    uint2 i [[thread_position_in_grid]],
    ushort lane [[thread_index_in_simdgroup]],
    uint2 size [[threads_per_grid]],
    uint3 groups [[threadgroups_per_grid]]) { // ! must all be scalars
  x[i.y * size.x + i.x] = float(lane + groups.z);
}
kernel void one_width(device float* x [[buffer(0)]],
    uint3 i [[thread_position_in_grid]],
    ushort3 size [[threads_per_threadgroup]],
    uint index [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  x[i.x] = float(size.x + index + simd);
}
kernel void copies(device float* x [[buffer(0)]], constant Pair& p [[buffer(1)]]) {
  Pair q = p;
  threadgroup Pair t[1];
  t[0] = q;
  x[0] = t[0].a;
}
kernel void jumps(device float* x [[buffer(0)]]) {
  goto end; // ! goto
end:
  x[0] = 0.0f;
}
struct Shape {
  virtual float area(); // ! virtual
};
kernel void throws(device float* x [[buffer(0)]]) {
  float (*f)(float) = helper; // ! pointers to functions
  x[0] = f(1.0f);
}
template <typename T> kernel void copy(device T* x [[buffer(0)]]) {
  x[0] = T(1);
}
template [[host_name("vector_size")]] [[kernel]] decltype(vector_size<float>) vector_size<float>;
template [[host_name("copy_float")]] [[kernel]] decltype(copy<float>) copy<float>;
template [[host_name("copy_float")]] [[kernel]] decltype(copy<half>) copy<half>; // ! second kernel
"#;

#[test]
fn planted_mistakes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mistakes.metal");
    std::fs::write(&path, MISTAKES).unwrap();
    let found = rules::check(&Source::new(&path), common::compiler(), common::cache()).unwrap();
    let mut missed = Vec::new();
    for (number, line) in MISTAKES.lines().enumerate() {
        let Some((_, expected)) = line.split_once("// ! ") else { continue };
        let number = number as u32 + 1;
        if !found.iter().any(|v| v.line == number && v.message.contains(expected)) {
            missed.push(format!("{number}: {expected}"));
        }
    }
    let marked = |line: u32| MISTAKES.lines().nth(line as usize - 1).unwrap().contains("// !");
    let false_alarms: Vec<_> = found.iter().filter(|v| !marked(v.line)).collect();
    assert!(
        missed.is_empty() && false_alarms.is_empty(),
        "{missed:#?} {false_alarms:#?} {found:#?}"
    );
}

#[test]
fn own_kernels_are_clean() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !workspace.join("metal").exists() {
        return; // the crate has been taken out of its workspace
    }
    for folder in ["metal", "examples/own_primitive/metal", "tests/suite/hosted"] {
        let mut checked = 0;
        for entry in std::fs::read_dir(workspace.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "metal") {
                let source = Source::new(&path);
                let found = rules::check(&source, common::compiler(), common::cache()).unwrap();
                assert!(found.is_empty(), "{}: {found:#?}", path.display());
                checked += 1;
            }
        }
        assert!(checked > 0, "no kernels in {folder}");
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
