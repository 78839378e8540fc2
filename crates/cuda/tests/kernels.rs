//! Compiles kernels with NVRTC, which needs no GPU. If NVRTC is not installed, the tests print a
//! message and pass, unless `MLX_PRIMITIVES_NEED_NVRTC` is set.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once};

use mlx_primitives_build::flatten;
use mlx_primitives_cuda::{
    Argument, Bound, Constant, Cubin, Report, Request, Result, compile_in, kernels,
};

const NEEDED: &str = "MLX_PRIMITIVES_NEED_NVRTC";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn is_installed() -> bool {
    mlx_primitives_cuda::search_in(root().join(".mlx/cuda/nvidia/cu13/lib"));
    match mlx_primitives_cuda::Nvrtc::get() {
        Ok(_) => true,
        Err(error) => {
            assert!(std::env::var_os(NEEDED).is_none(), "{error}");
            static SAID: Once = Once::new();
            // Do not use `eprintln`, because libtest hides its output if a test passes.
            let said = "\nnot run: kernels for CUDA; scripts/build_metal.sh --cuda brings NVRTC\n";
            SAID.call_once(|| _ = std::io::stderr().write_all(said.as_bytes()));
            false
        }
    }
}

/// Compiles a kernel and caches it, so that the next run of the tests takes less time.
fn compile(request: &Request, architecture: u32) -> Result<Cubin> {
    let folder = std::env::var_os("MLX_PRIMITIVES_CUDA_CACHE").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("cubins"));
    compile_in(Some(&folder), request, architecture)
}

/// Name prefixes of kernels that can read eight 16-bit elements at a time.
const EIGHT: [&str; 6] = [
    "mlxp_layer_norm_",
    "mlxp_linear_gated_",
    "mlxp_quantized_few_",
    "mlxp_residual_norm_",
    "mlxp_rms_norm_",
    "mlxp_softmax_",
];

/// Returns each kernel of `metal/` with the source that contains it. A kernel that can read eight
/// elements at a time occurs twice: once with this number, and once with the default.
fn all() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let metal = root().join("metal");
    let entries = |folder: &Path| std::fs::read_dir(folder).expect("metal/");
    for entry in entries(&metal).chain(entries(&metal.join("nvidia"))) {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|kind| kind == "metal") {
            let source = flatten(&path, std::slice::from_ref(&metal)).expect("a source");
            for name in kernels(&source).expect("kernels") {
                if EIGHT.iter().any(|op| name.starts_with(op)) && !name.ends_with("float32") {
                    found.push((name.clone(), format!("#define MLXP_READS 8\n{source}")));
                }
                found.push((name, source.clone()));
            }
        }
    }
    found.sort();
    found
}

fn bound() -> Vec<Bound> {
    (0..32).map(Bound::as_declared).collect()
}

/// Compiles these kernels for an architecture, on all cores of the machine.
fn compile_all(architecture: u32, kernels: &[(String, String)]) -> BTreeMap<String, Report> {
    let (next, reports) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let faults = Mutex::new(Vec::new());
    let bound = bound();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((name, source)) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let newer = ["mlxp_quantized_few_", "mlxp_linear_tiles_", "mlxp_linear_gated_"];
                    if architecture < 80 && newer.iter().any(|op| name.starts_with(op)) {
                        continue; // no plan uses this kernel there
                    }
                    let request =
                        Request { source, kernel: name, bound: &bound, ..Request::default() };
                    match compile(&request, architecture) {
                        Ok(made) => {
                            let eight = source.starts_with("#define MLXP_READS 8");
                            let name =
                                format!("{name}{}", if eight { ", eight reads" } else { "" });
                            reports.lock().expect("reports").insert(name, made.report);
                        }
                        Err(error) => {
                            faults.lock().expect("faults").push(format!("{name}: {error}"))
                        }
                    }
                }
            });
        }
    });
    let faults = faults.into_inner().expect("faults");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    reports.into_inner().expect("reports")
}

/// Returns the bytes of stack that a thread may use. CUDA's sine and cosine keep a table for large
/// angles on the stack.
fn allowed_stack(name: &str) -> u32 {
    if name.starts_with("mlxp_rope") { 32 } else { 0 }
}

/// The architectures for which `scripts/verify.sh cuda` compiles every kernel. Without that script,
/// the test compiles each kernel for only one of these architectures. It then leaves out the
/// kernels in `SLOW`, unless a variable selects them.
const ARCHITECTURES: [u32; 4] = [75, 80, 90, 120];
/// Kernels that can each take minutes to compile. They are for attention over plain keys and
/// values, which by default mostly uses MLX's own ops on NVIDIA GPUs, so these kernels seldom run.
const SLOW: [&str; 2] = ["mlxp_attention_matrix", "mlxp_attention_grad"];

/// Compiles the kernels that the variable `MLX_PRIMITIVES_CUDA_KERNELS` selects, or all kernels if
/// it is not set. If `MLX_PRIMITIVES_CUDA_ARCHITECTURES` is set, compiles each kernel for all
/// architectures that this variable lists.
#[test]
fn every_kernel_compiles() {
    if !is_installed() {
        return;
    }
    let mut kernels = all();
    let selected = std::env::var("MLX_PRIMITIVES_CUDA_KERNELS");
    if let Ok(part) = &selected {
        kernels.retain(|(name, _)| name.contains(part.as_str()));
    }
    assert!(!kernels.is_empty());
    let groups: Vec<(u32, Vec<(String, String)>)> =
        match std::env::var("MLX_PRIMITIVES_CUDA_ARCHITECTURES") {
            Ok(chosen) => {
                let each = chosen.split_whitespace().map(|text| text.parse().expect("a number"));
                each.map(|architecture| (architecture, kernels.clone())).collect()
            }
            Err(_) => {
                if selected.is_err() {
                    kernels.retain(|(name, _)| !SLOW.iter().any(|slow| name.starts_with(slow)));
                }
                let turn = |turn: usize| {
                    kernels.iter().skip(turn).step_by(ARCHITECTURES.len()).cloned().collect()
                };
                let each = ARCHITECTURES.into_iter().enumerate();
                each.map(|(number, architecture)| (architecture, turn(number))).collect()
            }
        };
    for (architecture, kernels) in groups {
        let start = std::time::Instant::now();
        let reports = compile_all(architecture, &kernels);
        let slow: Vec<String> = reports
            .iter()
            .filter(|(name, one)| {
                // Most kernels with the prefix `mlxp_quantized_few_` run with 512 threads on every
                // GPU, which leaves 128 registers per thread. Kernels for 5-bit and 6-bit weights
                // and for eight rows of x may need more, and then run with 256 threads.
                let of_256 = ["_b5_", "_b6_", "_band8_"];
                let half = of_256.iter().any(|part| name.contains(part));
                let most = if half { 256 } else { 128 };
                let few = name.starts_with("mlxp_quantized_few_") && one.registers > most;
                one.spilled > 0 || one.stack > allowed_stack(name) || few
            })
            .map(|(name, one)| format!("sm_{architecture} {name}: {one:?}"))
            .collect();
        assert!(slow.is_empty(), "{}", slow.join("\n"));
        let seconds = start.elapsed().as_secs();
        eprintln!("sm_{architecture}: {} kernels in {seconds} s", reports.len());
    }
}

/// Compiles kernels as users write them: instantiated by macros, with a reference to a number, or
/// with function constants.
#[test]
fn kernels_of_users_compile() {
    if !is_installed() {
        return;
    }
    let folder = root().join("tests/core/custom");
    let constants: Vec<Constant> =
        (0..8).map(|index| Constant { index, data_type: 33, bits: 3 }).collect();
    let bound = bound();
    for file in ["kernels.metal", "shifted.metal"] {
        let source = flatten(folder.join(file), &[]).expect("a source");
        let names = kernels(&source).expect("kernels");
        assert!(!names.is_empty(), "{file}");
        for name in names {
            for counts_threads in [false, true] {
                let request = Request {
                    source: &source,
                    kernel: &name,
                    bound: &bound,
                    constants: &constants,
                    counts_threads,
                };
                let made = compile(&request, 80);
                let made = made.unwrap_or_else(|error| panic!("{file}, {name}: {error}"));
                assert_eq!(made.arguments.contains(&Argument::Grid), counts_threads);
            }
        }
    }
}

/// Compiles reads of several vector elements at once, such as `at.xy`.
#[test]
fn elements_by_letters_are_read() {
    if !is_installed() {
        return;
    }
    let source = "#include <metal_stdlib>\nusing namespace metal;\n\
        template <typename T> T folded(vec<T, 4> all) { return all.wzyx.xy.y + all.rgb.z; }\n\
        kernel void of_letters(device float* out, uint3 at [[thread_position_in_grid]]) {\n\
          const uint2 place = at.xy + uint2(1, 2);\n\
          out[place.x] = folded(float4(1.0f, 2.0f, 3.0f, float(place.y)).zzww);\n}\n";
    let bound = bound();
    let request = Request { source, kernel: "of_letters", bound: &bound, ..Request::default() };
    let made = compile(&request, 80);
    assert!(made.is_ok(), "{}", made.expect_err("an error"));
}

/// Compiles the kernel with which ranks exchange arrays. The C++ file that launches the kernel
/// contains its source.
#[test]
fn the_exchange_between_ranks_compiles() {
    if !is_installed() {
        return;
    }
    let text = std::fs::read_to_string(root().join("cpp/runtime/cuda_exchange.cpp")).unwrap();
    let source = text.split("R\"cuda(").nth(1).and_then(|rest| rest.split(")cuda\"").next());
    let bound = [(0, 0), (1, 0), (2, 96)].map(|(index, bytes)| Bound { index, bytes });
    let request = Request {
        source: source.unwrap(),
        kernel: "mlxp_exchange",
        bound: &bound,
        ..Request::default()
    };
    for architecture in [80, 90] {
        let made = compile(&request, architecture).unwrap();
        assert_eq!(made.arguments, [0, 1, 2].map(Argument::Buffer));
        assert_eq!((made.report.stack, made.report.spilled), (0, 0));
    }
}

#[test]
fn an_error_names_the_file_and_the_line() {
    if !is_installed() {
        return;
    }
    let source = "#line 1 \"mine.metal\"\n#include <metal_stdlib>\nusing namespace metal;\n\n\
                  kernel void f(\n  device float* x [[buffer(0)]],\n  \
                  uint i [[thread_position_in_grid]]) {\n  x[i] = unknown;\n}\n";
    let bound = bound();
    let request = Request { source, kernel: "f", bound: &bound, ..Request::default() };
    let error = compile(&request, 90).expect_err("an unknown name").to_string();
    assert!(error.contains("mine.metal(7): error: identifier \"unknown\""), "{error}");
}

/// Checks that a compiled kernel is found in the cache, and that a damaged file is compiled again.
#[test]
fn the_cache_is_read_and_repaired() {
    if !is_installed() {
        return;
    }
    let source =
        "#include <metal_stdlib>\nkernel void f(device float* x [[buffer(0)]]) { *x = 1; }";
    let bound = bound();
    let request = Request { source, kernel: "f", bound: &bound, ..Request::default() };
    let folder = tempfile::tempdir().expect("a folder");
    let first = compile_in(Some(folder.path()), &request, 90).expect("a kernel");
    let files: Vec<PathBuf> = std::fs::read_dir(folder.path())
        .expect("the cache")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    let whole = std::fs::read(file).expect("a file");
    for damaged in [&whole[..10], b"", b"f 1 2\0", &[b"f 1 2 3\0".as_slice(), b"text"].concat()] {
        std::fs::write(file, damaged).expect("written");
        assert_eq!(compile_in(Some(folder.path()), &request, 90).expect("a kernel"), first);
        assert_eq!(std::fs::read(file).expect("a file"), whole);
    }
    compile_in(Some(folder.path()), &request, 80).expect("a kernel");
    assert_eq!(std::fs::read_dir(folder.path()).expect("the cache").count(), 2);
}
