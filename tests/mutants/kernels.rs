//! Mutants of the Metal kernels: copies of their sources with one fault each.

use std::path::{Path, PathBuf};

use metal_sim::{Compiler, Library, Source};

use crate::mutate::{Mutant, mutants};
use crate::rules::RULES;

const EACH: &str = r#"MACRO("float32", float) MACRO("float16", half) MACRO("bfloat16", bfloat)"#;

/// The classes of mutants of `FILES` that run if `METAL_SIM_ALL_MUTANTS` is not set.
const DEFAULT: [&str; 6] = ["barrier", "guard", "slots", "initial", "buffers", "bound"];

/// Files of `metal/`. For each, the stems of the kernels in which a fault of the file shows. A stem
/// is the name of a .metal file.
const FILES: [(&str, &[&str]); 17] = [
    ("common.h", &["softmax", "rms_norm", "layer_norm"]),
    ("rows.h", &["softmax", "rms_norm"]),
    ("layer_norm_rows.h", &["rms_norm", "layer_norm"]),
    ("shared.h", &["softmax", "rms_norm"]),
    ("rms_norm.metal", &["rms_norm"]),
    ("rms_norm_sums.h", &["rms_norm"]),
    ("softmax.metal", &["softmax"]),
    ("softmax_rows.h", &["softmax", "logsumexp"]),
    ("rope.metal", &["rope"]),
    ("rope_turn.h", &["rope"]),
    ("rope_append.metal", &["rope_append"]),
    ("logsumexp.metal", &["logsumexp"]),
    ("reduce.metal", &["reduce"]),
    ("lora.metal", &["lora"]),
    ("activation.metal", &["activation"]),
    ("norm_grad.metal", &["norm_grad"]),
    ("take_grad.metal", &["take_grad"]),
];

/// Files whose kernels take longer to compile or to run. For these files, only the classes of
/// mutants in `OF_LONGER` run if `METAL_SIM_ALL_MUTANTS` is not set.
const LONGER: [(&str, &[&str]); 13] = [
    ("attention_grad.metal", &["attention_grad"]),
    ("attention_matrix.h", &["attention"]),
    ("attention_tile.h", &["attention"]),
    ("attention_vector.h", &["attention"]),
    ("cross_entropy.metal", &["cross_entropy"]),
    ("layer_norm.metal", &["layer_norm"]),
    ("linear.metal", &["linear"]),
    ("masked_softmax.metal", &["masked_softmax"]),
    ("masked_softmax_grad.metal", &["masked_softmax_grad"]),
    ("quantized_matmul.metal", &["quantized_matmul"]),
    ("quantized_matmul_stage.h", &["quantized_matmul"]),
    ("quantized_matmul_tile.h", &["quantized_matmul"]),
    ("quantized_transposed.metal", &["quantized_transposed"]),
];
const OF_LONGER: [&str; 2] = ["barrier", "slots"];

/// These strings begin the instances for all quantization formats except affine with 4 and 8 bits.
const OTHER_FORMATS: [&str; 8] =
    ["(\"b2\"", "(\"b3\"", "(\"b5\"", "(\"b6\"", "(\"mxfp4\"", "(\"mxfp8\"", "(\"nvfp4\"", "(\"k"];

/// For each stem, texts that occur in the lines of some kernel instances. These instances are not
/// compiled with a fault, and the other instances of the template are.
const LEFT_OUT: [(&str, &[&str]); 4] = [
    ("attention_grad", &["_128_", "_256_"]),
    ("attention", &["_q8_", "_80_", "_96_", "_128_", "_256_", "_64_4_"]),
    ("quantized_matmul", &OTHER_FORMATS),
    ("quantized_transposed", &OTHER_FORMATS),
];

pub struct Job {
    pub mutant: Mutant,
    pub stems: &'static [&'static str],
}

fn metal() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("metal")
}

/// All mutants that run. In `FILES`, mutants of lines with `size_t(`, which compute strides in 64
/// bits, run too, even if their class is not in `DEFAULT`.
pub fn jobs() -> Vec<Job> {
    let all = std::env::var_os("METAL_SIM_ALL_MUTANTS").is_some();
    let of = |(file, stems): (&str, &'static [&'static str]), classes: &'static [&str]| {
        let text = std::fs::read_to_string(metal().join(file)).expect("a source");
        let stride = |mutant: &Mutant| classes == DEFAULT && mutant.from.contains("size_t(");
        let chosen = move |m: &Mutant| all || classes.contains(&m.class) || stride(m);
        let list = mutants(file, &text, RULES).into_iter().filter(chosen);
        list.map(|mutant| Job { mutant, stems }).collect::<Vec<_>>()
    };
    let files = FILES.into_iter().map(|file| (file, &DEFAULT[..]));
    let longer = LONGER.into_iter().map(|file| (file, &OF_LONGER[..]));
    files.chain(longer).flat_map(|(file, classes)| of(file, classes)).collect()
}

/// Compiles kernels in temporary folders. Dropping this value removes the folders.
pub struct Kernels {
    compiler: Compiler,
    sources: tempfile::TempDir,
    cache: tempfile::TempDir,
}

impl Kernels {
    pub fn new() -> Self {
        let folder = || tempfile::tempdir().expect("a folder");
        let compiler = Compiler::find().expect("a compiler");
        Self { compiler, sources: folder(), cache: folder() }
    }

    /// Compiles the float32 kernels of a stem with a mutant. Skips instances that take long to
    /// compile.
    pub fn compile(&self, mutant: &Mutant, stem: &str) -> metal_sim::Result<Library> {
        let left_out = LEFT_OUT.iter().filter(|(of, _)| *of == stem);
        let left_out: Vec<_> = left_out.flat_map(|(_, parts)| *parts).collect();
        for entry in std::fs::read_dir(metal()).expect("sources").flatten() {
            if entry.path().is_dir() {
                continue; // of kernels that these do not include
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            let mut text = match mutant.file == name {
                true => mutant.text.clone(),
                false => std::fs::read_to_string(entry.path()).expect("a source"),
            };
            if name == "common.h" {
                assert!(text.contains(EACH), "common.h lists the types in another way");
                text = text.replace(EACH, "MACRO(\"float32\", float)");
            }
            if name.strip_suffix(".metal") == Some(stem) {
                // If the line is inside a macro, keep its backslash, so that the macro continues.
                let keep = |line: &str| match left_out.iter().any(|part| line.contains(**part)) {
                    true if line.ends_with('\\') => "  \\".to_owned(),
                    true => String::new(),
                    false => line.to_owned(),
                };
                text = text.lines().map(|line| keep(line) + "\n").collect();
            }
            std::fs::write(self.sources.path().join(name), text).expect("a copy");
        }
        let source = Source::new(self.sources.path().join(format!("{stem}.metal")));
        let library = Library::compile(&source, &self.compiler, self.cache.path());
        // The library is loaded, and no other mutant can use it, so remove its file.
        for entry in std::fs::read_dir(self.cache.path()).expect("a cache").flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "so") {
                std::fs::remove_file(entry.path()).expect("a compiled mutant");
            }
        }
        library
    }
}
