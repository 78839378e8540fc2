//! Tests with MLX's kernels, which Apple's compiler accepts. The lints must find nothing in them.
//! The kernels of `mlx-primitives` must use only attributes, functions and types that MLX's kernels
//! use, or that [`SPECIFIED`] lists. The shim is this crate's implementation of Metal's headers.
#![cfg(target_os = "linux")]

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use metal_sim::{Source, rules};

const KERNELS: &str = "mlx/backend/metal/kernels";

/// The folder of MLX's headers; `None` if scripts/build_metal.sh did not install MLX from a wheel.
fn root() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.mlx/python/mlx/include");
    let found = root.join(KERNELS).is_dir();
    if !found {
        // Write to stderr directly: libtest hides the output of `eprintln!` if a test passes.
        let missing =
            "not run: the comparison with MLX's kernels; .mlx/python holds no wheel of MLX";
        writeln!(std::io::stderr(), "{missing}").expect("standard error");
    }
    found.then_some(root)
}

/// The headers of MLX's kernels.
fn headers(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.join(KERNELS)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path.strip_prefix(root).unwrap().display().to_string()),
            }
        }
    }
    assert!(found.len() > 50, "{found:?}");
    found.sort();
    found
}

/// Sources that each include one header, as MLX's `.metal` files do.
struct Including {
    root: PathBuf,
    folder: tempfile::TempDir,
}

impl Including {
    fn new(root: PathBuf) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Empty stand-ins for Apple's headers that the shim lacks. Lints do not need their
        // contents.
        let name = "MetalPerformancePrimitives";
        std::fs::create_dir(folder.path().join(name)).unwrap();
        for header in [format!("{name}/{name}.h"), "metal_tensor".into()] {
            std::fs::write(folder.path().join(header), "").unwrap();
        }
        Self { root, folder }
    }

    fn source(&self, header: &str) -> Source {
        let path = self.folder.path().join("including.metal");
        let text = format!(
            "#include <metal_stdlib>\nusing namespace metal;\n#include \"{KERNELS}/utils.h\"\n\
             #include \"{header}\"\n"
        );
        std::fs::write(&path, text).unwrap();
        Source::new(path).include_dir(&self.root).include_dir(self.folder.path())
    }
}

#[test]
#[ignore = "run by scripts/verify.sh"]
fn lints_find_nothing_in_mlx() {
    let Some(root) = root() else { return };
    let including = Including::new(root.clone());
    for header in headers(&root) {
        let source = including.source(&header);
        let found = rules::lint(&source, common::compiler(), common::cache()).unwrap();
        // MLX compiles the kernels that use tensors for Metal 4, which allows lambdas.
        let newer = |message: &str| header.contains("nax") && message.contains("before Metal 3.2");
        let counts = |found: &rules::Violation| !found.advice && !newer(&found.message);
        let found: Vec<_> = found.into_iter().filter(counts).collect();
        assert!(found.is_empty(), "{header}: {found:#?}");
    }
}

/// The host's compiler must accept the headers for which the shim has all features.
#[test]
#[ignore = "run by scripts/verify.sh"]
fn types_agree_in_mlx() {
    let Some(root) = root() else { return };
    let including = Including::new(root);
    for name in [
        "binary",
        "copy",
        "cross_entropy",
        "dot",
        "gemv",
        "gemv_masked",
        "hadamard",
        "indexing/gather_axis",
        "logsumexp",
        "sdpa_blocked",
        "sdpa_vector",
        "softmax",
        "steel/attn/attn",
        "steel/gemm/gemm",
        "ternary",
        "unary",
    ] {
        let source = including.source(&format!("{KERNELS}/{name}.h"));
        let found = rules::check(&source, common::compiler(), common::cache()).unwrap();
        let found: Vec<_> = found.into_iter().filter(|violation| !violation.advice).collect();
        assert!(found.is_empty(), "{name}: {found:#?}");
    }
}

/// Features that our kernels use and MLX's kernels do not use, each with the section of the Metal
/// Shading Language Specification, version 4, that describes it.
const SPECIFIED: [(&str, &str); 18] = [
    ("[[threadgroup]] threadgroup *", "5.2.1, Locating Buffer, Texture, and Sampler Arguments"),
    ("[[threadgroup_position_in_grid]] uint2", INPUT),
    ("[[threads_per_threadgroup]] uint2", INPUT),
    ("divide", "6.5, Math Functions"),
    ("half2", VECTOR),
    ("ushort2", VECTOR),
    ("packed_bfloat2", PACKED),
    ("packed_bfloat4", PACKED),
    ("packed_float2", PACKED),
    ("packed_float4", PACKED),
    ("packed_half2", PACKED),
    ("packed_half4", PACKED),
    ("packed_uchar2", PACKED),
    ("packed_uchar4", PACKED),
    ("packed_uint2", PACKED),
    ("packed_uint4", PACKED),
    ("simd_broadcast", "6.9.2, SIMD-Group Functions"),
    ("simd_broadcast_first", "6.9.2, SIMD-Group Functions"),
];
const INPUT: &str = "5.2.3.6, Kernel Function Input Attributes";
const VECTOR: &str = "2.2, Vector Data Types";
const PACKED: &str = "2.2.3, Packed Vector Types";

/// The parts of Metal that a source uses, as text (attributes with their types, functions, types),
/// and the names that the source defines itself.
fn used(source: &Source) -> (BTreeSet<String>, BTreeSet<String>) {
    let found = rules::vocabulary(source, common::compiler(), common::cache()).unwrap();
    let attributes = found.attributes.iter().map(|(name, kind)| format!("[[{name}]] {kind}"));
    (attributes.chain(found.called).chain(found.types).collect(), found.defined)
}

#[test]
fn ours_use_what_mlx_uses() {
    let Some(root) = root() else { return };
    let including = Including::new(root.clone());
    let mut theirs = BTreeSet::new();
    for header in headers(&root) {
        theirs.extend(used(&including.source(&header)).0);
    }
    let (mut ours, mut defined) = (BTreeSet::new(), BTreeSet::new());
    for entry in std::fs::read_dir(common::metal("softmax").parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "metal") {
            let (used, named) = used(&Source::new(&path));
            ours.extend(used);
            defined.extend(named);
        }
    }
    let only: BTreeSet<&str> = ours
        .difference(&theirs)
        .filter(|word| !defined.contains(*word))
        .map(|word| &**word)
        .collect();
    let specified: BTreeSet<&str> = SPECIFIED.into_iter().map(|(word, _)| word).collect();
    assert_eq!(only, specified, "the left are used and are not listed; the right are listed");
}
